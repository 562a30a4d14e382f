"""The speedup curve that the simulation predicts, beside the measured one. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tf_config.speedup import Speedup
from tfdist.parameter_server.consistency.setting import policy_of
from tfdist.simulation.calibration import (
    LINK_EFFICIENCY,
    cost_of,
    epoch_steps,
    hosts_of,
    median,
)
from tfdist.simulation.parameter_server import simulate
from tfdist.simulation.step_cost import Hosts, StepCost


@dataclass(frozen=True)
class Changes:
    """How the job to predict differs from the one that was measured.

    Attributes:
        num_ps: The number of ps, with the bytes evenly on them, as a plan places them;
            None for those that were measured, as they were.
        own_hosts: Whether each task has a host of its own, in place of one machine for all.
        cores: The cores of each host, without other programs; None as measured.
        rate: Bytes per second of each task's link in each direction; None as measured.
        steps_per_epoch: The steps of an epoch, at whose end the workers wait for each
            other; None as measured, 0 for an endless epoch.
        segments: In how many parts a worker's gradients go out one after the other, as
            with large weights in shards over so many ps.
        half_of_the_bits: Whether weights and gradients travel in half of the bits that
            they had when they were measured.
    """

    num_ps: int | None = None
    own_hosts: bool = False
    cores: float | None = None
    rate: float | None = None
    steps_per_epoch: int | None = None
    segments: int = 1
    half_of_the_bits: bool = False

    def cost(self, measured: StepCost) -> StepCost:
        """Returns what a step takes."""
        share = 0.5 if self.half_of_the_bits else 1.0
        return replace(
            measured,
            segments=self.segments,
            pulled=share * measured.pulled,
            pushed=share * measured.pushed,
            fullest_ps=1 / self.num_ps if self.num_ps else measured.fullest_ps,
        )

    def hosts(self, measured: Hosts) -> Hosts:
        """Returns where the tasks run."""
        hosts = measured
        if self.own_hosts or self.cores is not None:
            hosts = replace(
                hosts,
                share_one=not self.own_hosts,
                cores=self.cores or hosts.cores,
                share=1.0,
            )
        if self.rate is not None:
            # Only a link that is shaped, as measured ones are, has a burst.
            hosts = replace(hosts, rate=LINK_EFFICIENCY * self.rate, burst=0.0)
        return hosts


AS_MEASURED = Changes()


@dataclass(frozen=True)
class Point:
    """One point of the curve.

    Attributes:
        workers: The number of workers.
        predicted: Steps per second in the simulation.
        bound: What limits them there.
        measured: The median of the measured steps per second; None if this number of
            workers was not measured, or the job differs.
        cores: The cores that the tasks could use in the long run.
    """

    workers: int
    predicted: float
    bound: str
    measured: float | None = None
    cores: float = 0.0

    @property
    def error(self) -> float | None:
        """The prediction's deviation, relative to the measured number."""
        return None if self.measured is None else self.predicted / self.measured - 1


@dataclass(frozen=True)
class Curve:
    """The points of a policy.

    Attributes:
        policy: The policy as text.
        num_ps: The number of ps.
        cost: The cost of a step, from the runs with one worker.
        points: The points, by increasing number of workers.
    """

    policy: str
    num_ps: int
    cost: StepCost
    points: tuple[Point, ...]


def predict(
    measured: Speedup,
    policy: str,
    changes: Changes = AS_MEASURED,
    *,
    up_to: int = 0,
    steps: int = 0,
    seed: int = 0,
) -> Curve:
    """Predicts the curve of a policy, at the measured sizes and beyond.

    Args:
        measured: What `launch.speedup` wrote.
        policy: The policy as text. It need not have been measured.
        changes: How the job differs. If it does, no point has a measured counterpart.
        up_to: The largest number of workers; by default the largest that was measured.
        steps: How many steps to simulate at each size; see `simulate`.
        seed: Of the simulation.

    Raises:
        CalibrationError: If the file does not tell what a step takes.
        ValueError: If the policy is malformed.
    """
    cost = changes.cost(cost_of(measured, policy))
    everything = [run for run in measured.runs if run.epochs]
    length = changes.steps_per_epoch
    if length is None:
        length = epoch_steps(everything)
    points = []
    for workers in sizes_of(measured.sizes, up_to):
        runs = measured.of(policy, workers)
        hosts = changes.hosts(hosts_of(measured, runs or everything))
        outcome = simulate(
            cost,
            hosts,
            workers,
            policy_of(policy),
            steps=steps,
            epoch_steps=length,
            seed=seed,
        )
        is_comparable = runs and changes == AS_MEASURED
        points.append(
            Point(
                workers=workers,
                predicted=outcome.steps_per_second,
                bound=outcome.bound,
                measured=(
                    median(runs, lambda run: run.steps_per_second)
                    if is_comparable
                    else None
                ),
                cores=hosts.cores * hosts.share,
            )
        )
    return Curve(policy, changes.num_ps or measured.num_ps, cost, tuple(points))


def sizes_of(measured: Sequence[int], up_to: int) -> list[int]:
    """Returns the measured sizes, then powers of two, then the last.

    >>> sizes_of([1, 2, 3], 20)
    [1, 2, 3, 4, 8, 16, 20]
    """
    largest = max(measured)
    more = [2**power for power in range(up_to.bit_length())]
    more = [each for each in more if largest < each < up_to]
    return [*measured, *more, *([up_to] if up_to > largest else [])]
