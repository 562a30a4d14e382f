"""The speedup curve that the simulation predicts, next to the measured one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tf_config.speedup import Speedup
from tfdist.consistency.setting import policy_of
from tfdist.research.simulation.calibration import (
    LINK_EFFICIENCY,
    cost_of,
    epoch_steps,
    hosts_of,
    median,
)
from tfdist.research.simulation.parameter_server import simulate
from tfdist.research.simulation.step_cost import Hosts, StepCost


@dataclass(frozen=True)
class JobChanges:
    """Differences of the predicted job from the measured one; None: as measured.

    With `num_ps`, the bytes are evenly on that many ps, as a plan places them. With
    `own_hosts`, each task has a host of its own. `cores` are those of each host,
    without other programs; `rate` is in bytes per second of each task's link in each
    direction. An epoch of 0 steps is endless. A worker's gradients go out in `segments`
    parts, one after the other, as with large weights in shards over that many ps.
    """

    num_ps: int | None = None
    own_hosts: bool = False
    cores: float | None = None
    rate: float | None = None
    steps_per_epoch: int | None = None
    segments: int = 1
    half_of_the_bits: bool = False

    def cost(self, measured: StepCost) -> StepCost:
        """Returns the predicted cost of a step."""
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


AS_MEASURED = JobChanges()


@dataclass(frozen=True)
class Point:
    """One point of the curve, in steps per second.

    `bound` is what limits the predicted ones; `measured` is the median, None if this
    number of workers was not measured or the job differs; `cores` is what the tasks
    could use in the long run.
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
    """The points of a policy, by increasing number of workers.

    `cost` is that of a step, from the runs with one worker.
    """

    policy: str
    num_ps: int
    cost: StepCost
    points: tuple[Point, ...]


def predict(
    measured: Speedup,
    policy: str,
    changes: JobChanges = AS_MEASURED,
    *,
    up_to: int = 0,
    steps: int = 0,
    seed: int = 0,
) -> Curve:
    """Predicts the curve of a policy, at the measured sizes and beyond, up to `up_to`.

    The policy need not have been measured. If `changes` says that the job differs, no
    point has a measured counterpart. Raises CalibrationError if the file does not tell
    what a step takes.
    """
    cost = changes.cost(cost_of(measured, policy))
    everything = [run for run in measured.runs if run.epochs]
    epoch = changes.steps_per_epoch
    if epoch is None:
        epoch = epoch_steps(everything)
    points = []
    for workers in sizes_of(measured.sizes, up_to):
        runs = measured.of(policy, workers)
        hosts = changes.hosts(hosts_of(measured, runs or everything))
        length = {"steps": steps, "epoch_steps": epoch, "seed": seed}
        found = simulate(cost, hosts, workers, policy_of(policy), **length)
        known = None
        if runs and changes == AS_MEASURED:
            known = median(runs, lambda run: run.steps_per_second)
        cores = hosts.cores * hosts.share
        points.append(Point(workers, found.steps_per_second, found.bound, known, cores))
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
