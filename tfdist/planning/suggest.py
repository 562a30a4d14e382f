"""How many ps a number of workers needs. Pure: nothing imports TensorFlow."""

import functools
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from tfdist.parameter_server.consistency.asynchronous import Asynchronous
from tfdist.parameter_server.consistency.numbers import count_of
from tfdist.planning.forecast import CHIEF_CPU
from tfdist.simulation.parameter_server import Outcome, simulate
from tfdist.simulation.size import check_workers
from tfdist.simulation.step_cost import Hosts, StepCost

GIGABIT = 125e6
"""Bytes per second of a 1 Gbit/s link, in each direction."""


@dataclass(frozen=True)
class ClusterSuggestion:
    """How many ps for how many workers, and why.

    Attributes:
        num_ps: The fewest ps that keep up with the workers and hold the variables.
        num_workers: The number of workers.
        step_seconds: The step time of a worker that does not wait for other workers.
        busy: The fraction of time that the busiest ps link is in use with all workers
            at full speed, from 0 to 1.
        memory_ps: The fewest ps that hold the variables.
        rule_of_thumb: The number of ps by the rule of thumb: one per three workers,
            rounded up to an even number.
        rule_busy: The fraction of time that the busiest link would be in use with
            `rule_of_thumb` ps; above 1 the workers wait for the ps.
        utilization: The fraction of time that a link may be in use.
        cost: What a step takes, for the simulation.
        hosts: The links and cores, for the simulation.
    """

    num_ps: int
    num_workers: int
    step_seconds: float
    busy: float
    memory_ps: int
    rule_of_thumb: int
    rule_busy: float
    utilization: float
    cost: StepCost
    hosts: Hosts

    @property
    def rule_is_wrong(self) -> bool:
        """Whether the rule starves the workers, or at least doubles the ps needed."""
        return self._rule_is_too_few or self.rule_of_thumb >= 2 * max(2, self.num_ps)

    @property
    def _rule_is_too_few(self) -> bool:
        is_busy = self.rule_busy > self.utilization * (1 + 1e-9)
        return is_busy or self.rule_of_thumb < self.memory_ps

    @functools.cached_property
    def _simulated(self) -> Outcome:
        return simulate(self.cost, self.hosts, self.num_workers, Asynchronous())

    @property
    def steps_per_second(self) -> float:
        """The steps per second of all workers together, by a simulation.

        Cost: a millisecond per worker, and a third of a second, the first time.
        """
        return self._simulated.steps_per_second

    @property
    def bound(self) -> str:
        """What limits the steps per second in the simulation, as the chief."""
        return self._simulated.bound

    def __str__(self) -> str:
        lines = [
            f"{self.num_ps} ps for {self.num_workers} workers: "
            f"{_rounded(self.steps_per_second)} steps/s, limited by {self.bound}; the links of "
            f"the ps {self.busy:.0%} busy"
        ]
        rule = f"the rule of thumb, 1 : 3 and even, says {self.rule_of_thumb}"
        if self.rule_of_thumb < self.memory_ps:
            lines.append(
                f"{rule}, and is wrong: they do not hold the variables, for which it "
                f"takes {self.memory_ps}"
            )
        elif self.rule_busy > 1:
            lines.append(
                f"{rule}, and is wrong: their links would be asked for "
                f"{self.rule_busy:.1f} times what they carry, and the workers wait"
            )
        elif self._rule_is_too_few:
            lines.append(
                f"{rule}, and is wrong: their links would be {self.rule_busy:.0%} busy, "
                f"above {self.utilization:.0%}, and requests queue up"
            )
        elif self.rule_is_wrong:
            lines.append(
                f"{rule}, and is wrong: {self.num_ps} do, and more only idle "
                f"({self.rule_busy:.0%} busy)"
            )
        else:
            lines.append(f"{rule}, which does as well ({self.rule_busy:.0%} busy)")
        return "\n".join(lines)


def suggest_cluster(
    bytes_per_step: float,
    compute_seconds: float,
    num_workers: int,
    *,
    bandwidth: float = GIGABIT,
    ps_bandwidth: float | None = None,
    imbalance: float = 1.0,
    utilization: float = 0.8,
    model_bytes: float = 0.0,
    ps_memory: float = math.inf,
    chief_seconds: float = CHIEF_CPU,
) -> ClusterSuggestion:
    """Suggests how many ps keep up with this many asynchronous workers.

    In each step, a worker reads d bytes (half of `bytes_per_step`), computes for c
    seconds, and sends d bytes back. A single worker takes

        t = c + 2 d / bandwidth

    seconds per step, so W workers move W d / t bytes per second in each direction. The
    busiest of the P ps links carries `imbalance / P` of that, and is in use for the
    fraction

        busy = W d imbalance / (P t ps_bandwidth)

    of the time. P is the smallest number that keeps it within `utilization` and holds
    `model_bytes`. With c = 0 and equal links that is one ps per 1.6 workers; with a
    long c, one ps for all workers; the rule of thumb is in between. The rule asks for
    an even P, which hurts with round robin: kernels and biases alternate, so all
    kernels land on every second ps. A plan is equally balanced on any number of ps.

    Assumes that every ps and every worker has its own host. Ignores latency and the
    compute time of the ps. The steps per second that the result tells are those of a
    simulation (`tfdist.simulation`), in which workers wait for links and for the chief.

    >>> resnet50 = 205e6  # sum(plan.traffic_per_ps)
    >>> print(suggest_cluster(resnet50, 0.5, num_workers=8, bandwidth=1.25e9))
    2 ps for 8 workers: 11.5 steps/s, limited by the steps themselves; the links of the ps 49% busy
    the rule of thumb, 1 : 3 and even, says 4, and is wrong: 2 do, and more only idle (25% busy)

    Args:
        bytes_per_step: The bytes that a step reads and writes:
            `sum(plan.traffic_per_ps)`.
        compute_seconds: The compute time of a step, measured on a worker with local
            variables.
        num_workers: The number of workers.
        bandwidth: The bandwidth of a worker's link, in bytes per second in each
            direction.
        ps_bandwidth: The bandwidth of a ps's link; defaults to `bandwidth`.
        imbalance: The traffic of the busiest ps over the mean:
            `plan.traffic_imbalance`.
        utilization: How busy the link of a ps may be, above 0 and at most 1. Requests
            arrive at random, and queue up as utilization approaches 1.
        model_bytes: The bytes of all variables with their slots:
            `sum(plan.bytes_per_ps)`.
        ps_memory: The bytes that a ps has for variables.
        chief_seconds: The CPU seconds of the chief for one step.

    Raises:
        TypeError: If `num_workers` is not an integer.
        ValueError: If an argument is out of range.
    """
    ps_bandwidth = bandwidth if ps_bandwidth is None else ps_bandwidth
    _check_numbers(
        bytes_per_step=bytes_per_step,
        compute_seconds=compute_seconds,
        bandwidth=bandwidth,
        ps_bandwidth=ps_bandwidth,
        imbalance=imbalance,
        utilization=utilization,
        model_bytes=model_bytes,
        ps_memory=ps_memory,
        chief_seconds=chief_seconds,
    )
    num_workers = count_of("suggest_cluster", "num_workers", num_workers, least=1)
    check_workers(num_workers)
    _check_at_least(0, bytes_per_step=bytes_per_step, compute_seconds=compute_seconds)
    _check_at_least(0, model_bytes=model_bytes, chief_seconds=chief_seconds)
    _check_at_least(1, imbalance=imbalance)
    for name, value in (
        ("bandwidth", bandwidth),
        ("ps_bandwidth", ps_bandwidth),
        ("ps_memory", ps_memory),
        ("utilization", utilization),
        ("bytes_per_step or compute_seconds", bytes_per_step + compute_seconds),
    ):
        if not value > 0:
            raise ValueError(f"{name} is above 0; received {value!r}")
    if utilization > 1:
        raise ValueError(f"utilization is at most 1; received {utilization!r}")
    one_way = bytes_per_step / 2
    step_seconds = compute_seconds + 2 * one_way / bandwidth
    asked = num_workers * one_way * imbalance / (step_seconds * ps_bandwidth)
    memory_ps = max(1, math.ceil(model_bytes * imbalance / ps_memory))
    # Without round(), a float error above a whole number would add one ps.
    num_ps = max(memory_ps, math.ceil(round(asked / utilization, 9)), 1)
    rule = max(2, 2 * math.ceil(num_workers / 6))
    return ClusterSuggestion(
        num_ps=num_ps,
        num_workers=num_workers,
        step_seconds=step_seconds,
        busy=asked / num_ps,
        memory_ps=memory_ps,
        rule_of_thumb=rule,
        rule_busy=asked / rule,
        utilization=utilization,
        cost=StepCost(
            # A step takes time, if only a nanosecond.
            worker_cpu=max(compute_seconds, 1e-9),
            chief_cpu=chief_seconds,
            pulled=one_way,
            pushed=one_way,
            fullest_ps=min(imbalance / num_ps, 1.0),
        ),
        hosts=Hosts(rate=bandwidth, ps_rate=ps_bandwidth),
    )


def _rounded(number: float) -> str:
    return f"{float(f'{number:.3g}'):,g}"


def _check_numbers(**values: Any) -> None:
    for name, value in values.items():
        # A bool is a number to Python.
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} is a number; received {value!r}")


def _check_at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if not least <= value < math.inf:
            raise ValueError(f"{name} is at least {least}; received {value!r}")
