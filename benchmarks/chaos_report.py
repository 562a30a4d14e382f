"""Tables of the results of chaos.py: pure functions of its JSON.

    python benchmarks/chaos_report.py           # into docs/measured-faults.md
    python benchmarks/chaos_report.py --check   # exits with status 1 if they differ

No number there is typed by hand.
"""

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pages


@dataclass(frozen=True)
class Run:
    """The outcome of one schedule.

    Attributes:
        seed: The seed of the schedule.
        faults: All planned faults.
        recovered: The faults that happened, with `recovery` in seconds, or None if the
            job ended first.
        status: The job's exit status; None if it missed its deadline.
        reason: Why it failed, if it did.
        seconds: How long it ran.
        steps: The steps that the optimizer counted.
        expected: The requested steps.
        done_again: The longest stretch of work that was repeated, in seconds.
        broken: The violated invariants, and what was observed.
    """

    seed: int
    faults: list[dict[str, Any]]
    recovered: list[dict[str, Any]]
    status: int | None
    reason: str
    seconds: float
    steps: int | None
    expected: int
    done_again: float
    broken: list[str]

    @property
    def outcome(self) -> str:
        """How it ended, in one word."""
        if self.status is None:
            return "hung"
        return "trained" if self.status == 0 else "error"


def name_of(fault: dict[str, Any]) -> str:
    """The kind of a fault and the role that it hit.

    >>> name_of({"kind": "kill", "task": "ps:1"})
    '`kill` of a ps'
    """
    job = fault["task"].partition(":")[0]
    return f"`{fault['kind']}` of {'the' if job == 'chief' else 'a'} {job}"


def recovery_table(runs: Sequence[Run]) -> str:
    """Returns the recovery times after each kind of fault."""
    seconds = defaultdict(list)
    unseen: Counter[str] = Counter()
    for fault in (each for run in runs for each in run.recovered):
        if fault["recovery"] is None:
            unseen[name_of(fault)] += 1
        else:
            seconds[name_of(fault)].append(fault["recovery"])
    rows = []
    for name in sorted({*seconds, *unseen}):
        some = seconds[name]
        times = [f"{statistics.median(some):.1f}", f"{max(some):.1f}"] if some else "--"
        rows.append([name, len(some) + unseen[name], *times, unseen[name]])
    heads = ["fault", "count", "median, s", "maximum, s", "job ended first"]
    return pages.table(heads, rows)


def section(measured: dict[str, Any]) -> str:
    """Returns the section of docs/measured-faults.md."""
    runs = [Run(**run) for run in measured["runs"]]
    about = measured["environment"]
    outcomes = Counter(run.outcome for run in runs)
    trained = [run for run in runs if run.outcome == "trained"]
    lost = sum(max(0, run.expected - (run.steps or 0)) for run in trained)
    more = sorted((run.steps or 0) - run.expected for run in trained)
    again = sorted(run.done_again for run in runs)
    happened = sum(len(run.recovered) for run in runs)
    planned = sum(len(run.faults) for run in runs)
    said = [
        f"Of {len(runs)} schedules, each with {len(runs[0].faults)} faults on 2 ps and 2 "
        f"workers, {outcomes['trained']} ended with the right weights, "
        f"{outcomes['error']} with an error that gave its reason, and "
        f"{outcomes['hung']} missed their deadline. {happened} of the {planned} faults "
        "happened before the training was over.",
        f"In those that trained, {lost} steps were lost, and "
        f"{statistics.median(more):g} (median) to {max(more)} (maximum) of "
        f"{runs[0].expected} ran twice. The work that was repeated took "
        f"{statistics.median(again):.1f} s (median) to {max(again):.1f} s (maximum), "
        "with a checkpoint every second.",
    ]
    if broken := [f"seed {run.seed}: {each}" for run in runs for each in run.broken]:
        said.append("Violated: " + "; ".join(broken) + ".")
    return (
        "\n\n".join(said)
        + "\n\n"
        + recovery_table(runs)
        + "\nBy `python benchmarks/chaos.py` with TensorFlow "
        f"{about['tensorflow']}, Keras {about['keras']}, {about['cores']} cores that "
        "shared with other work.\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Writes or checks the document, and returns the exit status."""
    sections = {
        "chaos": f"{section(pages.measured('chaos'))}\n{pages.recorded('chaos')}"
    }
    page = pages.DOCS / "measured-faults.md"
    return pages.publish(page, sections, "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
