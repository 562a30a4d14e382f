"""A part of a step as a function of its own, so that many steps share one trace."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.pipeline.devices import on
from tfdist.pipeline.parcel import Recipe, packed, unpacked

_as_written = tf.autograph.experimental.do_not_convert


class StageFunction:
    """Computes values from values on the device of a stage, traced at its first call.

    Args:
        device: Where its results are.
        compute: Takes and returns a list of tensors, with their masks, and of None.
    """

    def __init__(
        self, device: str, compute: Callable[[list[Any]], Sequence[Any]]
    ) -> None:
        self._device, self._compute = device, compute
        self._traced: Any = None
        self._results: Recipe | None = None

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Adds the computation to the function that is being traced."""
        tensors, recipe = unpacked(values)
        if self._traced is None:

            @_as_written
            def on_tensors(*tensors: tf.Tensor) -> list[tf.Tensor]:
                results = self._compute(packed(tensors, recipe))
                given, self._results = unpacked(results)
                return given

            self._traced = _tf.function(on_tensors, recipe.specs)
        # What follows, such as the optimizer's update, is placed where its inputs are.
        with on(self._device):
            copies = [tf.identity(each) for each in self._traced(*tensors)]
        assert self._results is not None
        return packed(copies, self._results)
