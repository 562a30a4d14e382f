"""A batch as one tensor, the argument of a function on a worker.

Every argument of such a function costs a message of its own. As rows of strings, the
batches of one or more steps are one argument, whatever they consist of.
"""

from typing import Any

import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure


def tensor_specs(structure: BatchStructure) -> list[tf.TensorSpec]:
    """The specs of a batch's tensors; a ragged or sparse one has several."""
    return tf.nest.flatten(list(structure.present), expand_composites=True)


def tensors_of(structure: BatchStructure, batch: Any) -> list[tf.Tensor]:
    """The tensors of a batch, in the order of `tensor_specs`."""
    return tf.nest.flatten(list(structure.flatten(batch)), expand_composites=True)


def pack(structure: BatchStructure, tensors: list[tf.Tensor]) -> Any:
    """The batch that has these tensors."""
    present = list(structure.present)
    return structure.pack(
        tf.nest.pack_sequence_as(present, tensors, expand_composites=True)
    )


def to_row(structure: BatchStructure, batch: Any) -> tf.Tensor:
    """A batch as a matrix of one row: each of its tensors serialized, a string."""
    strings = [tf.io.serialize_tensor(each) for each in tensors_of(structure, batch)]
    return tf.reshape(tf.stack(strings), [1, len(strings)])


def from_row(structure: BatchStructure, row: tf.Tensor) -> Any:
    """The batch of a row, a vector of strings."""
    return pack(
        structure,
        [
            tf.ensure_shape(tf.io.parse_tensor(row[i], spec.dtype), spec.shape)
            for i, spec in enumerate(tensor_specs(structure))
        ],
    )


def as_tensors(batch: Any) -> Any:
    """The same structure with a tensor in place of each array; None stays."""

    def as_tensor(value: Any) -> Any:
        if value is None or isinstance(value, tf.__internal__.CompositeTensor):
            return value
        return tf.convert_to_tensor(value)

    return tf.nest.map_structure(as_tensor, batch)
