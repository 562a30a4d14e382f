"""Statistics and tables of fit_throughput.py: pure functions of a list of repeats."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import rich.box
import rich.table

JOBS = ("chief", "ps", "worker")
# A step on the chief leaves the workers idle; each does its share otherwise.
MIN_WORKER_SHARE = 0.05


@dataclass(frozen=True)
class Repeat:
    """One repeat of one contender on one workload.

    Attributes:
        workload: The label of the workload.
        contender: The name of the contender.
        index: Counts from 0; repeats with the same index ran one after the other.
        steps: The number of steps.
        seconds: Their total time.
        cpu: CPU seconds of each of the contender's tasks, by `chief`, `ps:0`...
        idle_cpu: CPU seconds of all tasks of the waiting contenders meanwhile.
        iterations: Steps that the optimizer counted.
        worker_steps: Steps that the workers counted, if the contender reports it.
    """

    workload: str
    contender: str
    index: int
    steps: int
    seconds: float
    cpu: dict[str, float]
    idle_cpu: float
    iterations: int
    worker_steps: int | None

    @property
    def steps_per_second(self) -> float:
        """The throughput."""
        return self.steps / self.seconds

    def cpu_ms(self, job: str = "") -> float:
        """CPU milliseconds per step, of the tasks of one job or of all."""
        return 1e3 * sum(self._cpu_of(job)) / self.steps

    @property
    def lost(self) -> int:
        """Steps that the optimizer did not count."""
        return self.steps - self.iterations

    @property
    def ran_on_workers(self) -> bool:
        """Whether every worker did part of the work, and they counted all the steps."""
        share = min(self._cpu_of("worker")) / sum(self._cpu_of(""))
        return share >= MIN_WORKER_SHARE and self.worker_steps in (None, self.steps)

    def _cpu_of(self, job: str) -> list[float]:
        return [used for task, used in self.cpu.items() if task.startswith(job)]


@dataclass(frozen=True)
class Spread:
    """The median, minimum and maximum of some numbers."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> "Spread":
        """Returns the spread of at least one number."""
        numbers = list(numbers)
        return cls(statistics.median(numbers), min(numbers), max(numbers))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.greatest:.2f})"


def of(repeats: Sequence[Repeat], workload: str, contender: str) -> list[Repeat]:
    """Returns the repeats of one contender on one workload, by index."""
    chosen = [r for r in repeats if (r.workload, r.contender) == (workload, contender)]
    return sorted(chosen, key=lambda repeat: repeat.index)


def paired(
    repeats: Sequence[Repeat],
    workload: str,
    contenders: tuple[str, str],
    value: Callable[[Repeat], float],
) -> Spread:
    """Compares two contenders repeat by repeat, so that other load cancels out.

    Returns:
        The spread of the first contender's value over the second's.
    """
    pairs = zip(*(of(repeats, workload, each) for each in contenders), strict=True)
    return Spread.of(value(first) / value(second) for first, second in pairs)


def target(workload: str, contender: str, other: str) -> float | None:
    """The target for the ratio of steps per second, if there is one."""
    model, steps_per_execution = workload.split(" x")
    if not contender.startswith("fit"):
        return None
    if other == "tf_keras":
        return {"mlp": 1.2, "cnn": 1.0}[model]
    return 0.9 if other == "loop" and int(steps_per_execution) == 10 else None


def measured_table(repeats: Sequence[Repeat]) -> rich.table.Table:
    """Returns a table of the medians of every contender on every workload."""
    table = rich.table.Table(box=rich.box.ROUNDED, title="Medians")
    table.add_column("workload")
    table.add_column("contender")
    for heading in ("steps/s", "CPU ms/step", *JOBS, "lost steps", "on the workers"):
        table.add_column(heading, justify="right")
    for workload in unique(repeat.workload for repeat in repeats):
        for contender in unique(repeat.contender for repeat in repeats):
            chosen = of(repeats, workload, contender)
            rate = Spread.of(repeat.steps_per_second for repeat in chosen).median
            cpu = [
                Spread.of(repeat.cpu_ms(job) for repeat in chosen).median
                for job in ("", *JOBS)
            ]
            lost, steps = (sum(r.lost for r in chosen), sum(r.steps for r in chosen))
            everywhere = all(repeat.ran_on_workers for repeat in chosen)
            table.add_row(
                workload,
                contender,
                f"{rate:.1f}",
                *(f"{each:.1f}" for each in cpu),
                f"{lost} of {steps}",
                "yes" if everywhere else "NO",
            )
        table.add_section()
    return table


def ratio_table(repeats: Sequence[Repeat]) -> rich.table.Table:
    """Returns a table of paired ratios of our contenders to the others."""
    table = rich.table.Table(
        box=rich.box.ROUNDED, title="Paired ratios: median (least to greatest)"
    )
    for heading in ("workload", "ratio", "steps/s", "target", "", "CPU per step"):
        table.add_column(heading)
    contenders = unique(repeat.contender for repeat in repeats)
    for workload in unique(repeat.workload for repeat in repeats):
        for ours, other in ratios_of_interest(contenders):
            pair = (ours, other)
            rate = paired(repeats, workload, pair, lambda r: r.steps_per_second)
            cpu = paired(repeats, workload, pair, lambda r: r.cpu_ms())
            least = target(workload, ours, other)
            verdict = "" if least is None else _verdict(rate.median, least)
            aim = "" if least is None else f">= {least}"
            table.add_row(
                workload, f"{ours} / {other}", str(rate), aim, verdict, str(cpu)
            )
        table.add_section()
    return table


def ratios_of_interest(contenders: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the pairs to compare: each of ours with each of the others."""
    ours = [name for name in contenders if name.startswith("fit")]
    others = [name for name in contenders if not name.startswith("fit")]
    return [(one, other) for one in ours for other in others]


def unique(names: Iterable[str]) -> list[str]:
    """Returns the names in order of their first appearance, each once."""
    return list(dict.fromkeys(names))


def plot(repeats: Sequence[Repeat], path: str) -> None:
    """Draws the median steps/s of every contender, and their spread."""
    from matplotlib.figure import Figure

    workloads = unique(repeat.workload for repeat in repeats)
    contenders = unique(repeat.contender for repeat in repeats)
    figure = Figure(figsize=(2 + 1.5 * len(workloads), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(contenders)
    for i, contender in enumerate(contenders):
        spreads = [
            Spread.of(
                repeat.steps_per_second for repeat in of(repeats, workload, contender)
            )
            for workload in workloads
        ]
        axes.bar(
            [
                j + (i - (len(contenders) - 1) / 2) * width
                for j in range(len(workloads))
            ],
            [spread.median for spread in spreads],
            width,
            label=contender,
            yerr=[
                [spread.median - spread.least for spread in spreads],
                [spread.greatest - spread.median for spread in spreads],
            ],
            capsize=3,
        )
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set_ylabel("steps/s, median and spread")
    axes.legend()
    figure.savefig(path, dpi=150)


def _verdict(ratio: float, least: float) -> str:
    return "[green]reached[/green]" if ratio >= least else "[red]missed[/red]"
