"""Cost of one step, derived from measured runs with one worker."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from tf_config.speedup import Run, Speedup
from tfdist._support.errors import Error
from tfdist.consistency.asynchronous import Asynchronous
from tfdist.research.simulation.parameter_server import simulate
from tfdist.research.simulation.step_cost import Hosts, StepCost

LINK_EFFICIENCY = 0.956
"""TCP's share of the rate of a link, as benchmarks/all_reduce.py has measured it."""

SPREAD = 0.5
"""The variation of a step's parts, relative to their means: an assumption.

It is the only number that no run with one worker measures. It was chosen with the two
files of docs/measured-speedup.md.
"""

FAIR_SHARE = 0.5
"""The share of a machine that the tasks get if they need it, next to other programs."""

_ROUNDS = 6
_STEPS = 600
_CLOSE = 0.002


class CalibrationError(Error, ValueError):
    """A file that the costs of a step cannot be derived from."""


def hosts_of(measured: Speedup, runs: Sequence[Run]) -> Hosts:
    """Returns where runs took place: on cores that they shared with other programs."""
    others = median(runs, lambda run: run.total("other_cpu") / run.total("seconds"))
    rate = math.inf if measured.rate is None else LINK_EFFICIENCY * measured.rate
    return Hosts(
        cores=measured.cores,
        share_one=True,
        rate=rate,
        burst=measured.burst,
        share=max(1 - others / measured.cores, FAIR_SHARE),
    )


def cost_of(measured: Speedup, policy: str) -> StepCost:
    """Returns the cost of a step, from the runs with one worker.

    CPU seconds and bytes are those that were counted. What remains of the time of a
    step, if it took longer than the simulation says, is `idle`; if it took less, the
    worker keeps several cores busy. If the policy was not measured with one worker, the
    first one that was takes its place: one worker waits for nobody.

    Raises CalibrationError if no run had one worker, or reported what it used.
    """
    runs = next(
        (
            found
            for each in (policy, *measured.policies)
            if (found := measured.of(each, 1))
        ),
        [],
    )
    if not runs:
        raise CalibrationError(
            f"there is no successful run with 1 worker among {list(measured.sizes)}: "
            "include 1 in --workers"
        )
    if not all(run.total_of("cpu", "worker") and run.total("messages") for run in runs):
        raise CalibrationError(
            "the runs with 1 worker did not report CPU seconds and messages, which only "
            "training with parameter servers does: give it a ps, as with --num_ps=1"
        )
    cost = StepCost(
        worker_cpu=_per_step(runs, "cpu", "worker"),
        ps_cpu=_per_step(runs, "cpu", "ps"),
        chief_cpu=_per_step(runs, "cpu", "chief"),
        pulled=_per_step(runs, "sent", "ps"),
        pushed=_per_step(runs, "received", "ps"),
        fed=_per_step(runs, "sent", "chief"),
        steps_per_message=max(
            round(median(runs, lambda run: run.total("steps") / run.total("messages"))),
            1,
        ),
        fullest_ps=_fullest(measured, runs),
        spread=SPREAD,
    )
    seconds = 1 / median(runs, lambda run: run.steps_per_second)
    hosts, length = hosts_of(measured, runs), epoch_steps(runs)
    return _fitted(cost, hosts, seconds, length, measured.cores)


def epoch_steps(runs: Sequence[Run]) -> int:
    """Returns the number of steps of an epoch."""
    return round(median(runs, lambda run: run.total("steps") / len(run.steady)))


def median(runs: Sequence[Run], number: Callable[[Run], float]) -> float:
    """Returns the median of a number over runs."""
    return statistics.median(number(run) for run in runs)


def _per_step(runs: Sequence[Run], name: str, job: str) -> float:
    return median(runs, lambda run: run.total_of(name, job) / run.total("steps"))


def _fullest(measured: Speedup, runs: Sequence[Run]) -> float:
    """Returns the share of all bytes that the fullest ps sends and receives."""
    totals: dict[str, float] = {}
    for run in runs:
        for epoch in run.steady:
            for each in (epoch.sent, epoch.received):
                for task, amount in each.items():
                    if task.startswith("ps"):
                        totals[task] = totals.get(task, 0.0) + amount
    if not sum(totals.values()):
        return 1 / max(measured.num_ps, 1)
    return max(totals.values()) / sum(totals.values())


def _fitted(
    cost: StepCost, hosts: Hosts, seconds: float, steps: int, most_cores: float
) -> StepCost:
    """Returns the cost for which one worker's step takes that many seconds."""

    def simulated(cost: StepCost) -> float:
        outcome = simulate(
            cost, hosts, 1, Asynchronous(), steps=_STEPS, epoch_steps=steps
        )
        return 1 / outcome.steps_per_second

    # The chief works next to the worker, and may hide some of what is added here: one
    # correction is not exact.
    for _ in range(_ROUNDS):
        missing = seconds - simulated(cost)
        if abs(missing) <= _CLOSE * seconds:
            break
        idle = cost.idle + missing
        if idle >= 0:
            cost = replace(cost, idle=idle)
            continue
        # It computes for less time than it uses of a core.
        computing = cost.worker_cpu / cost.parallelism
        faster = computing / max(computing + idle, computing / 2)
        cost = replace(
            cost, idle=0.0, parallelism=min(cost.parallelism * faster, most_cores)
        )
    return cost
