"""Values that one step leaves on a device for a later one."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.pipeline.devices import cpu_beside, on
from tfdist.pipeline.parcel import Recipe, packed, unpacked


class Mailbox:
    """A queue on a device: what is put there first is taken first.

    A step takes before it puts, so that there is always something to take, and nobody
    waits.

    Args:
        device: Where the values are kept, in the memory of its task.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._queue: Any = None
        self._recipe: Recipe | None = None

    def put(self, values: Sequence[Any]) -> None:
        """Leaves values; a first time before any are taken."""
        tensors, recipe = unpacked(values)
        if self._recipe is None:
            self._recipe = recipe
        if not tensors:
            return
        if self._queue is None:
            with tf.init_scope(), tf.device(cpu_beside(self._device)):
                self._queue = tf.queue.FIFOQueue(-1, [each.dtype for each in tensors])
        with on(self._device):
            self._queue.enqueue(tensors)

    def take(self) -> list[Any]:
        """Returns the values that are there for the longest time."""
        assert self._recipe is not None, "nothing was ever put"
        if self._queue is None:
            return packed([], self._recipe)
        found = self._queue.dequeue()
        tensors = found if isinstance(found, list | tuple) else [found]
        with on(self._device):
            copies = [tf.identity(each) for each in tensors]
        for each, spec in zip(copies, self._recipe.specs, strict=True):
            each.set_shape(spec.shape)
        return packed(copies, self._recipe)
