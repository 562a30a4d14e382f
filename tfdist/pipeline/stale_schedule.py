"""What happens in each step of a pipeline whose stages do not wait for each other.

In a step no stage waits for another one, so there is no bubble: what crosses a cut in a
step is used `lag` steps later. With a lag of 1 no stage waits for another's computation,
with 2 nor for a message. Batches flow through the stages as through a pipe: it fills, it is
full, and it drains when no batch follows. While it fills and drains some stages have
nothing to do.
"""

from dataclasses import dataclass

from tfdist.model_parallel.schedule import BACKWARD, FORWARD


@dataclass(frozen=True)
class Active:
    """The stages that have something to do in a step.

    Attributes:
        forward: Those that compute a batch forward.
        backward: Those that compute one backward.
        sent_forward: Those whose results of the step before are on their way.
        sent_backward: The same of gradients.
        counts: Whether the first batch has reached the last stage, in this step or before.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    sent_forward: tuple[int, ...] = ()
    sent_backward: tuple[int, ...] = ()
    counts: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.forward or self.backward or self.sent_forward or self.sent_backward
        )


def active(num_stages: int, lag: int, step: int, batches: int) -> Active:
    """Returns what the stages do in a step, counted from 0, with a lag of 1 or 2.

    One batch has come per step, this step's among them, until there were no more.

    >>> active(2, 1, 0, 1).forward, active(2, 1, 1, 2).forward
    ((0,), (0, 1))
    """

    def busy(kind: str, before: int = 0) -> tuple[int, ...]:
        return tuple(
            stage
            for stage in range(num_stages)
            if 0 <= batch_of(num_stages, lag, stage, kind, step - before) < batches
        )

    counts = batch_of(num_stages, lag, num_stages - 1, FORWARD, step) >= 0
    if lag == 1:
        return Active(busy(FORWARD), busy(BACKWARD), counts=counts)
    # The ends of the pipe send nothing further.
    sent_forward = tuple(each for each in busy(FORWARD, 1) if each + 1 < num_stages)
    sent_backward = tuple(each for each in busy(BACKWARD, 1) if each > 0)
    return Active(busy(FORWARD), busy(BACKWARD), sent_forward, sent_backward, counts)


def batch_of(num_stages: int, lag: int, stage: int, kind: str, step: int) -> int:
    """Returns which batch a stage computes in a step, forward or backward.

    Stage k of K computes forward the batch that stage 0 had `lag * k` steps before, and the
    gradient of a batch is back at stage k `lag * (K - 1 - k)` steps after the last stage
    has computed it. All are counted from 0; batches before the first one are negative.
    """
    cuts = stage if kind == FORWARD else 2 * (num_stages - 1) - stage
    return step - lag * cuts
