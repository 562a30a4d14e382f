"""What a pipeline's schedule costs: its bubble, its seconds, what it keeps.

K stages that take equally long, and M microbatches; nothing is said of links, which
`tfdist.pipeline.step_time` takes into account.

>>> bubble(4, 8), peak_kept("gpipe", 0, 4, 8), peak_kept("1f1b", 0, 4, 8)
(Fraction(3, 11), 8, 4)
"""

from fractions import Fraction

from tfdist.model_parallel.schedule import SCHEDULES, ScheduleError


def bubble(num_stages: int, num_microbatches: int) -> Fraction:
    """Returns the share of a step in which a stage has nothing to do.

    `(K - 1) / (M + K - 1)`, under both schedules: a step has M tasks each way, and the
    first task each way reaches the other end after K - 1 more.

    Source: Huang et al., "GPipe", NeurIPS 2019, section 2.3.

    Raises:
        ScheduleError: If there is no stage or no microbatch.
    """
    _check(0, num_stages, num_microbatches)
    return Fraction(num_stages - 1, num_microbatches + num_stages - 1)


def step_seconds(
    num_stages: int, num_microbatches: int, forward: float, backward: float
) -> float:
    """Returns the seconds of a step: `(M + K - 1) (forward + backward)`.

    The latter are the seconds of one microbatch's tasks on one stage.
    """
    _check(0, num_stages, num_microbatches)
    return (num_microbatches + num_stages - 1) * (forward + backward)


def peak_kept(name: str, stage: int, num_stages: int, num_microbatches: int) -> int:
    """Returns for how many microbatches a stage keeps activations at its peak.

    `gpipe`: all M. `1f1b`: `min(M, K - k)` on stage k, whatever M is.
    """
    _check(stage, num_stages, num_microbatches)
    if name not in SCHEDULES:
        raise ScheduleError(
            f"there is no schedule {name!r}: choose one of {', '.join(SCHEDULES)}"
        )
    if name == "gpipe":
        return num_microbatches
    return min(num_microbatches, num_stages - stage)


def _check(stage: int, num_stages: int, num_microbatches: int) -> None:
    if not (0 <= stage < num_stages and num_microbatches >= 1):
        raise ScheduleError(
            "a pipeline has at least one stage and one microbatch, and its stages count "
            f"from 0; received stage {stage} of {num_stages}, and {num_microbatches} "
            "microbatches"
        )
