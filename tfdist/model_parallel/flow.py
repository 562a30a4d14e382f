"""What happens in each step of a pipeline whose stages do not wait for each other. Pure.

Batches flow through the stages as through a pipe: it fills, it is full, and it drains when
no batch follows. While it fills and drains some stages have nothing to do.
"""

from dataclasses import dataclass

from tfdist.model_parallel.may_start import Stale
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


def active(num_stages: int, rule: Stale, step: int, batches: int) -> Active:
    """Returns what the stages do in a step.

    Args:
        num_stages: The number of stages.
        rule: What a task waits for.
        step: The step, counted from 0.
        batches: How many batches have come, one per step from step 0 on, this step's
            among them.

    >>> from tfdist.model_parallel.may_start import Stale
    >>> active(2, Stale(), 0, 1).forward, active(2, Stale(), 1, 2).forward
    ((0,), (0, 1))
    """

    def busy(kind: str, before: int = 0) -> tuple[int, ...]:
        return tuple(
            stage
            for stage in range(num_stages)
            if 0 <= rule.batch_of(num_stages, stage, kind, step - before) < batches
        )

    counts = rule.batch_of(num_stages, num_stages - 1, FORWARD, step) >= 0
    if rule.lag == 1:
        return Active(busy(FORWARD), busy(BACKWARD), counts=counts)
    # The ends of the pipe send nothing further.
    sent_forward = tuple(each for each in busy(FORWARD, 1) if each + 1 < num_stages)
    sent_backward = tuple(each for each in busy(BACKWARD, 1) if each > 0)
    return Active(busy(FORWARD), busy(BACKWARD), sent_forward, sent_backward, counts)
