"""The form of a batch: which of its values are there, and their specs."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.pipeline.microbatches import rows_of


class Form:
    """How a batch is made of a flat list of tensors.

    Functions that are traced keep it, so it has no tensor.

    Attributes:
        rows: How many rows the batch has.
        specs: Of its tensors, with any number of rows.
        key: Equal for batches of equal form and number of rows.
    """

    def __init__(self, batch: Any, tensors: Sequence[Any]) -> None:
        leaves = keras.tree.flatten(batch)
        self._is_present = [_is_present(each) for each in leaves]
        self._structure = keras.tree.map_structure(lambda _: None, batch)
        self.rows = rows_of(tensors)
        self.specs = [_of_any_rows(each) for each in tensors]
        self.key = repr((self.rows, self.specs, self._is_present))

    def batch(self, tensors: Sequence[Any]) -> Any:
        """Returns a batch of this form."""
        rest = iter(tensors)
        values = [next(rest) if present else None for present in self._is_present]
        return keras.tree.pack_sequence_as(self._structure, values)


def tensors_of(batch: Any) -> list[Any]:
    """Returns what is there of a batch, as tensors."""
    leaves = keras.tree.flatten(batch)
    return [_as_tensor(each) for each in leaves if _is_present(each)]


def _is_present(value: Any) -> bool:
    return value is not None and not isinstance(value, tf.experimental.Optional)


def _of_any_rows(value: Any) -> Any:
    # As in one process, where Keras does not know the size of a batch: what it reports of
    # several losses depends on that.
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)


def _as_tensor(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        return value
    return tf.convert_to_tensor(value)
