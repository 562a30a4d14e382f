"""The end of a pipeline: the loss of the model's outputs, and its gradients by them."""

from collections.abc import Sequence
from typing import Any

from tfdist.pipeline.devices import on
from tfdist.pipeline.microbatches import carried
from tfdist.pipeline.objective import Objective
from tfdist.pipeline.pipeline import Pipeline
from tfdist.pipeline.tasks import Tasks


class End:
    """What the last stage of a step computes beside its tasks.

    Args:
        pipeline: The model in stages.
        tasks: The tasks of the step.
        objective: The loss.
        count: The number of microbatches.
        by_part: Whether a microbatch goes backward from its own loss, before that of the
            whole batch is known.
        scale: By what the loss is multiplied against underflow.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        tasks: Tasks,
        objective: Objective,
        count: int,
        by_part: bool,
        scale: Any,
    ) -> None:
        self._ids, self._device = pipeline.outputs, pipeline.stages[-1].device
        # The loss of a microbatch is computed where its outputs are.
        last = len(pipeline.stages) - 1
        self._devices = [
            tasks.device(last, each) if by_part else self._device
            for each in range(count)
        ]
        self._tasks, self._objective = tasks, objective
        self._by_part, self._scale = by_part, scale
        self._outputs: list[Any] = [None] * count
        self._whole: Any = None

    def after_forward(self, microbatch: int) -> None:
        """Takes the outputs of a microbatch."""
        self._outputs[microbatch] = at_the_end(
            self._tasks, self._ids, self._devices[microbatch], microbatch
        )

    def before_backward(self, microbatch: int) -> None:
        """Adds the gradients of a microbatch's outputs to those of the tasks."""
        with on(self._devices[microbatch]):
            if self._by_part:
                found = self._objective.gradients_of_part(
                    microbatch, self._outputs[microbatch], self._scale
                )
                self._tasks.add_gradients(microbatch, self._ids, found)
            elif self._whole is None:
                *self._whole, rows = self._objective.gradients(
                    self._outputs, self._scale
                )
                for number, each in enumerate(rows):
                    self._tasks.add_gradients(number, self._ids, each)

    def result(self) -> tuple[Any, Any]:
        """Returns the loss of the batch and the model's output, once all have passed."""
        if self._whole is None:
            with on(self._device):
                predictions = self._objective.predictions(self._outputs)
                self._whole = self._objective.whole(predictions), predictions
        loss, predictions = self._whole
        return loss, predictions


def at_the_end(
    tasks: Tasks, ids: Sequence[int], device: str, microbatch: int
) -> list[Any]:
    """Returns the outputs of a microbatch on the device of the last stage."""
    with on(device):
        return [carried(each) for each in tasks.values(microbatch, ids)]
