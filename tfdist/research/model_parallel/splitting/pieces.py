"""Pieces of a split layer: its parts, the cuts of their inputs, and their join."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.types import Nest


@dataclass(frozen=True)
class Pieces:
    """The layers that a split layer is made of.

    `cuts` has what cuts the input of each part out of the whole one; it is empty if
    each part takes the whole. `cut` has the ranges of the input that the parts take, if
    it is cut, and `joined` those of the output that they give, if the join does no more
    than to put them side by side.
    """

    parts: list[Any]
    join: Any
    cuts: list[Any]
    cut: list[tuple[int, int]] | None = None
    joined: list[tuple[int, int]] | None = None

    def __call__(self, inputs: Nest) -> Nest:
        """Computes all of them here."""
        taken = [each(inputs) for each in self.cuts] or [inputs] * len(self.parts)
        return self.join([p(x) for p, x in zip(self.parts, taken, strict=True)])


def keep(layer: keras.Layer, pieces: Pieces) -> None:
    """Attaches its pieces to a layer, under names that Keras does not save.

    Attributes whose names begin with two underscores are not in Keras's files: the
    layer saves the weights of its pieces as one.
    """
    named = {"join": pieces.join}
    named |= {f"part_{at}": each for at, each in enumerate(pieces.parts)}
    named |= {f"cut_{at}": each for at, each in enumerate(pieces.cuts)}
    # Each by itself: tf.train.Checkpoint does not look into lists.
    for name, each in named.items():
        setattr(layer, f"__{name}__", each)
    layer.__pieces__ = pieces


class PartOf(keras.initializers.Initializer):
    """A part of what an initializer gives for the whole, so that both begin alike."""

    def __init__(
        self, whole: Any, shape: Sequence[int], axis: int, start: int, end: int
    ) -> None:
        self._whole, self._shape = whole, tuple(shape)
        self._part = (slice(None),) * axis + (slice(start, end),)

    def __call__(
        self, shape: Sequence[int], dtype: Any = None, **kwargs: object
    ) -> Any:
        """Returns the values of the part."""
        # The device of a part may have no memory for the whole.
        with tf.device("/device:CPU:0"):
            return self._whole(self._shape, dtype=dtype)[self._part]


class Cut(keras.layers.Layer):
    """Some of the last axis."""

    def __init__(self, start: int, end: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self._start, self._end = start, end
        self.supports_masking = True

    def call(self, inputs: Nest) -> Nest:
        """Returns a part of the input."""
        return inputs[..., self._start : self._end]


class Join(keras.layers.Layer):
    """The output of a layer, of the outputs of its parts: their sum, or side by side.

    `bias` has the arguments of `add_weight`, or is None.
    """

    def __init__(
        self,
        is_sum: bool,
        bias: dict[str, Any] | None = None,
        activation: Any = None,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self._is_sum, self._bias, self._activation = is_sum, bias, activation
        self.bias: Any = None
        self.supports_masking = True

    def build(self, input_shape: Nest) -> None:
        """Creates the bias."""
        if self._bias is not None:
            self.bias = self.add_weight(name="bias", **self._bias)

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        """Returns the whole output."""
        if self._is_sum:
            output = inputs[0]
            for each in inputs[1:]:
                output = output + each
        else:
            output = keras.ops.concatenate(inputs, axis=-1)
        if self.bias is not None:
            output = output + keras.ops.cast(self.bias, output.dtype)
        return output if self._activation is None else self._activation(output)

    def compute_mask(self, inputs: Nest, previous_mask: Nest) -> Nest:
        """Returns the mask of the first part, which is that of all."""
        return previous_mask[0] if previous_mask else None


class RowsOfTable(keras.layers.Embedding):
    """The rows of a table from `start` to `end`, of `whole` rows: the others are zeros."""

    def __init__(self, start: int, end: int, whole: int, **kwargs: object) -> None:
        super().__init__(input_dim=end - start, **kwargs)
        self._start, self._end, self._whole = start, end, whole

    def call(self, inputs: Nest) -> Nest:
        """Looks up the rows that are here."""
        ops = keras.ops
        ids = ops.cast(inputs, "int64")
        # From the end, as `keras.ops.take` counts. The last part fails for a row that the
        # table does not have, as a table in one piece does.
        ids = ops.where(ids < 0, ids + self._whole, ids)
        ids = ops.where(ids < 0, self._whole, ids)
        is_here = ids >= self._start
        if self._end < self._whole:
            is_here = ops.logical_and(is_here, ids < self._end)
        found = super().call(ops.where(is_here, ids - self._start, 0))
        return ops.where(is_here[..., None], found, ops.zeros_like(found))
