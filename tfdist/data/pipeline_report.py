"""Reports of a pipeline's cost on each worker, with advice."""

import statistics
from dataclasses import dataclass

from tfdist._support.views import render, table_of

MIN_SHARE = 0.1
"""The share of a step below which reading does not limit training."""

_SLOW = 3.0
_HELPS = {
    "reading": (
        "a larger block= in from_files or from_source, so that what is read together lies "
        "together; the files on more, or faster, disks"
    ),
    "map": (
        "num_parallel_calls=tf.data.AUTOTUNE in it, if it has none and processors are free; "
        "map after batch, for whole batches; more workers; what draws nothing at random, "
        "done once and saved (cache would bring all examples to the chief)"
    ),
    "batch": (
        "batch right behind from_source, which reads a batch at once, and map after it; "
        "examples of one size, which need no padding"
    ),
    "pipeline": (
        "num_parallel_calls in its maps; more workers; what draws nothing at random, done "
        "once and saved. tfdist.data.from_files(paths) is reported map by map"
    ),
}


@dataclass(frozen=True)
class PipelineReport:
    """The time that each worker takes to read a batch, stage by stage.

    Attributes:
        stages: The stages of a batch, such as "reading", "map 1" and "batch", in order.
        seconds: For each worker, the seconds of each stage for a batch, read alone; empty
            for a worker that did not answer.
        step_seconds: The seconds of a training step on each worker, its reading included;
            None where not known.
    """

    stages: tuple[str, ...]
    seconds: tuple[tuple[float, ...], ...]
    step_seconds: tuple[float | None, ...]

    @property
    def shares(self) -> tuple[float | None, ...]:
        """The time to read a batch over that of a step, on each worker: at most 1.

        An estimate of how long steps wait for data: less if a worker has processors free
        to read ahead, more if reading and steps slow each other down.

        >>> PipelineReport(("reading", "map 1"), ((0.25, 0.5), ()), (1.0, 1.0)).shares
        (0.75, None)
        """
        return tuple(
            min(1.0, sum(read) / step) if read and step else None
            for read, step in zip(self.seconds, self.step_seconds, strict=True)
        )

    @property
    def slowest_stages(self) -> tuple[str | None, ...]:
        """The stage that takes most of the time, on each worker."""
        return tuple(
            self.stages[read.index(max(read))] if read else None
            for read in self.seconds
        )

    @property
    def helps(self) -> str:
        """Advice for the stage that costs most on all workers together.

        >>> PipelineReport(("reading", "batch"), ((0.1, 0.2),), (40.0,)).helps
        'nothing here: reading is 1% of a step, and the steps themselves are the rest'
        >>> report = PipelineReport(("reading", "batch"), ((0.2, 0.1),), (0.4,))
        >>> report.helps.partition(",")[0]
        'for reading: a larger block= in from_files or from_source'
        """
        answered = [each for each in self.seconds if any(each)]
        if not answered:
            return "not known: no worker answered"
        shares = [each for each in self.shares if each is not None]
        if shares and max(shares) < MIN_SHARE:
            return (
                f"nothing here: reading is {max(shares):.0%} of a step, and the steps "
                "themselves are the rest"
            )
        totals = [sum(each) for each in zip(*answered, strict=True)]
        stage = self.stages[totals.index(max(totals))]
        told = [f"for {stage}: {_HELPS[_kind(stage)]}"]
        reads = [sum(each) for each in self.seconds]
        usual = statistics.median_low(map(sum, answered))
        for worker, read in enumerate(reads):
            if read > _SLOW * usual:
                told.append(
                    f"worker {worker} takes {read / usual:.1f} times as long as the median "
                    "worker: look at its disk and its processors"
                )
        return "; ".join(told)

    def __str__(self) -> str:
        headings = (*self.stages, "a batch", "a step", "share")
        table = table_of("worker", *(f">{each}" for each in headings))
        rows = zip(self.seconds, self.step_seconds, self.shares, strict=True)
        for worker, (read, step, share) in enumerate(rows):
            cells = [*read, sum(read)] if read else [None] * (len(self.stages) + 1)
            table.add_row(
                str(worker),
                *map(_milliseconds, [*cells, step]),
                "-" if share is None else f"{share:.0%}",
            )
        lines = [render(table).rstrip("\n")]
        if not any(self.step_seconds):
            lines.append("no step was measured: call fit before, or pass step_seconds=")
        return "\n".join([*lines, f"what would help: {self.helps}"])


def _kind(stage: str) -> str:
    """Returns the kind of advice for a stage.

    >>> _kind("map 2 (parse)"), _kind("padded_batch")
    ('map', 'batch')
    """
    first = stage.partition(" ")[0]
    return "batch" if first.endswith("batch") else first


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f} ms"


def seconds_of_stages(of_prefixes: list[float], first: float) -> tuple[float, ...]:
    """Returns the seconds of each stage from those of the pipeline up to each.

    `first` is that of the first stage when nobody had read the batch before.

    >>> seconds_of_stages([1.0, 4.0, 3.5], 2.0)
    (2.0, 3.0, 0.0)
    """
    pairs = zip(of_prefixes, of_prefixes[1:], strict=False)
    return first, *(max(0.0, after - before) for before, after in pairs)


def seconds_of_steps(
    seconds: float | None, steps: tuple[int, ...]
) -> tuple[float | None, ...]:
    """Returns the seconds of a step on each worker from their mean: slow ones run fewer.

    >>> seconds_of_steps(0.3, (10, 20))
    (0.45, 0.225)
    >>> seconds_of_steps(0.3, (0, 0)), seconds_of_steps(None, (1,))
    ((0.3, 0.3), (None,))
    """
    if seconds is None or not all(steps):
        return (seconds,) * len(steps)
    mean = statistics.mean(steps)
    return tuple(seconds * mean / each for each in steps)
