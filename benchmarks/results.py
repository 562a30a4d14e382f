"""Statistics of fit_throughput.py and its page: pure functions of a list of repeats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pages
from turns import Spread, unique

JOBS = ("chief", "ps", "worker")
# A step on the chief leaves the workers idle; each does its share otherwise.
MIN_WORKER_SHARE = 0.05
# `fit` reads the same tf.data on the workers as the others do; `fit_arrays` does more.
RATIOS = (("fit", "tf_keras"), ("fit_arrays", "tf_keras"), ("fit", "loop"))


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
    """Returns the spread of the first contender's value over the second's."""
    ours, theirs = (map(value, of(repeats, workload, each)) for each in contenders)
    return Spread.of_ratios(ours, theirs)


def rates(repeats: Sequence[Repeat], workload: str, *pair: str) -> Spread:
    """Returns the ratios of the steps per second of two contenders."""
    return paired(repeats, workload, pair, lambda r: r.steps_per_second)


def lost_steps(repeats: Sequence[Repeat], name: str) -> str:
    """Says how many of a contender's steps its optimizer did not count."""
    chosen = [each for each in repeats if each.contender == name]
    steps = sum(each.steps for each in chosen)
    return f"{sum(each.lost for each in chosen)} of {steps}"


def table(repeats: Sequence[Repeat]) -> str:
    """Returns the ratios for each workload, of the contenders that took turns."""
    names = {repeat.contender for repeat in repeats}
    pairs = [pair for pair in RATIOS if set(pair) <= names]
    rows = []
    for workload in unique(repeat.workload for repeat in repeats):
        of_pairs = [rates(repeats, workload, *pair) for pair in pairs]
        cpu = [
            paired(repeats, workload, each, lambda r: r.cpu_ms()) for each in pairs[:1]
        ]
        rows.append([workload, *of_pairs, *cpu])
    heads = [f"`{ours}` / `{other}`" for ours, other in pairs]
    cpu_heads = [f"CPU per step, {each}" for each in heads[:1]]
    return pages.table(["model, steps per call", *heads, *cpu_heads], rows)


def section(done: dict[str, Any]) -> str:
    """Returns the section of docs/throughput.md."""
    repeats = [Repeat(**each) for each in done["repeats"]]
    about = done["environment"]
    count = 1 + max(repeat.index for repeat in repeats)
    names = unique(repeat.contender for repeat in repeats)
    rate = Spread.of(r.steps_per_second for r in repeats if r.contender == names[0])
    lost = ", ".join(f"`{name}` {lost_steps(repeats, name)}" for name in names)
    return (
        "Ratios of steps per second, as the median (minimum to maximum) of "
        f"{count} paired repeats of {repeats[0].steps} steps. `{names[0]}` ran "
        f"{rate.least:.0f} to {rate.greatest:.0f} steps per second.\n\n"
        f"{table(repeats)}\n"
        f"Steps that the optimizer did not count: {lost}.\n\n"
        "Measured by `python benchmarks/fit_throughput.py` with TensorFlow "
        f"{about['tensorflow']}, Keras {about['keras']} and tf_keras "
        f"{about['tf_keras']}.\n"
    )


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
            Spread.of(r.steps_per_second for r in of(repeats, workload, contender))
            for workload in workloads
        ]
        left = (i - (len(contenders) - 1) / 2) * width
        axes.bar(
            [at + left for at in range(len(workloads))],
            [spread.median for spread in spreads],
            width,
            label=contender,
            yerr=list(zip(*(spread.errors for spread in spreads), strict=True)),
            capsize=3,
        )
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set_ylabel("steps/s, median and spread")
    axes.legend()
    figure.savefig(path, dpi=150)
