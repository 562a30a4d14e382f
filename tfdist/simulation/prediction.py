"""The speedup curve that the simulation predicts, beside the measured one. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tf_config.speedup import Speedup
from tfdist.parameter_server.consistency.setting import policy_of
from tfdist.simulation.calibration import cost_of, epoch_steps, hosts_of, median
from tfdist.simulation.parameter_server import simulate
from tfdist.simulation.step_cost import StepCost


@dataclass(frozen=True)
class Point:
    """One point of the curve.

    Attributes:
        workers: The number of workers.
        predicted: Steps per second in the simulation.
        bound: What limits them there.
        measured: The median of the measured steps per second; None if this number of
            workers was not measured.
        runs: How many runs that is the median of.
        cores: The cores that the tasks could use in the long run.
    """

    workers: int
    predicted: float
    bound: str
    measured: float | None = None
    runs: int = 0
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
        cost: The cost of a step, from the runs with one worker.
        points: The points, by increasing number of workers.
    """

    policy: str
    cost: StepCost
    points: tuple[Point, ...]


def predict(
    measured: Speedup,
    policy: str,
    *,
    up_to: int = 0,
    own_hosts: bool = False,
    cores: float | None = None,
    steps_per_epoch: int | None = None,
    segments: int = 1,
    wire_dtype: str | None = None,
    steps: int = 0,
    seed: int = 0,
) -> Curve:
    """Predicts the curve of a policy, at the measured sizes and beyond.

    Args:
        measured: What `launch.speedup` wrote.
        policy: The policy as text. It need not have been measured.
        up_to: The largest number of workers; by default the largest that was measured.
        own_hosts: Whether each task has a host of its own, in place of one machine for
            all. As with the next two, the points have no measured counterpart then.
        cores: The cores of each host, without other programs; by default as measured.
        steps_per_epoch: The steps of an epoch, at whose end the workers wait for each
            other; by default as measured. 0 for an endless epoch.
        segments: In how many parts a worker's gradients go out one after the other, as
            with large weights in shards over so many ps. As with the next one, the points
            have no measured counterpart if it is given.
        wire_dtype: "bfloat16" if weights and gradients travelled in half of the bits that
            they had when they were measured.
        steps: How many steps to simulate at each size; see `simulate`.
        seed: Of the simulation.

    Raises:
        CalibrationError: If the file does not tell what a step takes.
        ValueError: If the policy is malformed.
    """
    cost = _sent(cost_of(measured, policy), segments, wire_dtype)
    everything = [run for run in measured.runs if run.epochs]
    one_for_all = hosts_of(measured, everything)
    length = epoch_steps(everything) if steps_per_epoch is None else steps_per_epoch
    points = []
    for workers in sizes_of(measured.sizes, up_to):
        runs = measured.of(policy, workers)
        hosts = hosts_of(measured, runs) if runs else one_for_all
        if own_hosts or cores is not None:
            hosts = replace(
                hosts,
                share_one=not own_hosts,
                cores=cores or hosts.cores,
                share=1.0,
            )
        outcome = simulate(
            cost,
            hosts,
            workers,
            policy_of(policy),
            steps=steps,
            epoch_steps=length,
            seed=seed,
        )
        is_comparable = bool(runs) and not own_hosts and cores is None
        is_comparable &= steps_per_epoch is None and segments == 1 and not wire_dtype
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
                runs=len(runs),
                cores=hosts.cores * hosts.share,
            )
        )
    return Curve(policy, cost, tuple(points))


def _sent(cost: StepCost, segments: int, wire_dtype: str | None) -> StepCost:
    if wire_dtype not in (None, "bfloat16"):
        raise ValueError(f"wire_dtype is 'bfloat16' or None; received {wire_dtype!r}")
    share = 1.0 if wire_dtype is None else 0.5
    return replace(
        cost,
        segments=segments,
        pulled=share * cost.pulled,
        pushed=share * cost.pushed,
    )


def sizes_of(measured: Sequence[int], up_to: int) -> list[int]:
    """Returns the measured sizes, then powers of two, then the last.

    >>> sizes_of([1, 2, 3], 20)
    [1, 2, 3, 4, 8, 16, 20]
    """
    largest = max(measured)
    more = [2**power for power in range(up_to.bit_length())]
    more = [each for each in more if largest < each < up_to]
    return [*measured, *more, *([up_to] if up_to > largest else [])]
