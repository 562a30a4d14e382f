"""How a planned cluster would train: steps per second, what limits them, and faults. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfdist.parameter_server.consistency.policy import Consistency
from tfdist.planning.plan import Plan
from tfdist.simulation.parameter_server import simulate
from tfdist.simulation.step_cost import Hosts, StepCost

CHIEF_CPU = 2e-3
"""The chief's CPU seconds for one step that travels alone (docs/scale.md)."""

PS_CPU_PER_BYTE = 1e-9
"""CPU seconds of a ps for each byte that it sends or receives: an assumption, of 1 GB/s."""


@dataclass(frozen=True)
class Data:
    """The examples, and who reads them.

    Attributes:
        examples: How many an epoch has; 0 if it does not end.
        batch_size: How many a step has.
        example_bytes: The bytes of one.
        from_chief: Whether the chief reads them and sends them to the workers. Otherwise
            workers read them themselves, and storage is no limit.
    """

    examples: int = 0
    batch_size: int = 1
    example_bytes: float = 0.0
    from_chief: bool = False

    @property
    def fed(self) -> float:
        """The bytes from the chief to a worker for each step."""
        return self.batch_size * self.example_bytes if self.from_chief else 0.0


@dataclass(frozen=True)
class Faults:
    """What happens when a ps fails: training goes on from the last checkpoint.

    Attributes:
        checkpoint_seconds: Between two checkpoints.
        restart_seconds: From the fault until a new ps answers.
        disk: Bytes per second at which a ps reads its part of a checkpoint.
        mtbf_seconds: The mean time between the failures of one ps; infinite for none.
    """

    checkpoint_seconds: float = 600.0
    restart_seconds: float = 30.0
    disk: float = 200e6
    mtbf_seconds: float = math.inf


@dataclass(frozen=True)
class Forecast:
    """What a number of workers would reach.

    Attributes:
        workers: The number of workers.
        steps_per_second: Of all workers together.
        bound: What limits them: a resource, the policy, the links, or the steps themselves.
        busy: The share of its capacity of the busiest resource, from 0 to 1.
        alone: Steps per second of one worker beside which nothing else runs.
        epoch_seconds: The seconds of an epoch; None if it does not end.
    """

    workers: int
    steps_per_second: float
    bound: str
    busy: float
    alone: float
    epoch_seconds: float | None

    @property
    def speedup(self) -> float:
        """Steps per second, relative to one worker alone."""
        return self.steps_per_second / self.alone


def cost_of_plan(
    plan: Plan,
    data: Data,
    *,
    measured: StepCost | None = None,
    step_seconds: float | None = None,
) -> StepCost:
    """Returns what a step of a planned model takes.

    Bytes are the plan's: a step reads and writes every variable, or the rows looked up.

    Args:
        plan: The plan.
        data: The examples.
        measured: The cost of the same model's step, as `launch.speedup` has measured it.
        step_seconds: The seconds that a worker computes, with its variables at hand. CPU
            times of chief and ps are then this module's constants.

    Raises:
        ValueError: Unless exactly one of both is given, and positive.
    """
    if (measured is None) == (step_seconds is None):
        raise ValueError(
            "a forecast needs what a step takes: either a file of launch.speedup, or the "
            "seconds that a worker computes; received "
            + ("neither" if measured is None else "both")
        )
    moved = sum(plan.traffic_per_ps)
    fullest = max(plan.traffic_per_ps) / moved if moved else 1 / plan.num_ps
    if measured is not None:
        base = measured
    elif step_seconds is not None and 0 < step_seconds < math.inf:
        ps_cpu = PS_CPU_PER_BYTE * moved
        base = StepCost(worker_cpu=step_seconds, chief_cpu=CHIEF_CPU, ps_cpu=ps_cpu)
    else:
        raise ValueError(f"step_seconds is above 0 seconds; received {step_seconds!r}")
    return replace(
        base, pulled=moved / 2, pushed=moved / 2, fed=data.fed, fullest_ps=fullest
    )


def forecast(
    cost: StepCost,
    hosts: Hosts,
    sizes: Sequence[int],
    policy: Consistency,
    data: Data,
    *,
    steps: int = 0,
) -> list[Forecast]:
    """Returns what each number of workers would reach.

    Args:
        cost: What a step takes: see `cost_of_plan`.
        hosts: Where the tasks run.
        sizes: The numbers of workers.
        policy: Of consistency.
        data: The examples.
        steps: How many steps to simulate at each size; see `simulation.simulate`.

    Raises:
        ValueError: If there is no worker, or the policy needs more.
    """
    alone = 1 / cost.alone(hosts)
    found = []
    for workers in sizes:
        outcome = simulate(cost, hosts, workers, policy, steps=steps)
        rate = outcome.steps_per_second
        epoch = math.ceil(data.examples / data.batch_size) / rate
        found.append(
            Forecast(
                workers=workers,
                steps_per_second=rate,
                bound=outcome.bound,
                busy=max(outcome.busy.values()),
                alone=alone,
                epoch_seconds=epoch if data.examples else None,
            )
        )
    return found


def lost_seconds(plan: Plan, faults: Faults) -> float:
    """Returns the seconds that one failure of a ps costs all workers.

    A new ps starts, all ps read the last checkpoint, and the steps since it are repeated:
    those of half the time between two, on average.
    """
    restoring = max(plan.bytes_per_ps) / faults.disk
    return faults.restart_seconds + restoring + faults.checkpoint_seconds / 2


def lost_share(plan: Plan, faults: Faults) -> float:
    """Returns the share of the time that failures of ps cost, from 0 to 1.

    Between two failures of any ps there are `mtbf / num_ps` seconds of work.
    """
    lost = lost_seconds(plan, faults)
    return lost / (lost + faults.mtbf_seconds / plan.num_ps)
