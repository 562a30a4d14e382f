"""A batch as one tensor, the only argument of a function on a worker.

TensorFlow sends every argument of a remote function in a separate message. Serialized
into rows of strings, the batches of one or more steps travel in one message, whatever
their structure.
"""

from typing import Any

import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.fit.leased_batches import LeasedBatches


def tensor_specs(structure: BatchStructure) -> list[tf.TensorSpec]:
    """Returns the specs of a batch's tensors; a ragged or sparse value has several."""
    return tf.nest.flatten(list(structure.present), expand_composites=True)


def tensors_of(structure: BatchStructure, batch: Any) -> list[tf.Tensor]:
    """Returns the tensors of a batch, in the order of `tensor_specs`."""
    return tf.nest.flatten(list(structure.flatten(batch)), expand_composites=True)


def pack(structure: BatchStructure, tensors: list[tf.Tensor]) -> Any:
    """Returns the batch with these tensors."""
    present = list(structure.present)
    return structure.pack(
        tf.nest.pack_sequence_as(present, tensors, expand_composites=True)
    )


def to_row(structure: BatchStructure, batch: Any) -> tf.Tensor:
    """Returns a batch as a matrix of one row, with one string per serialized tensor."""
    strings = [tf.io.serialize_tensor(each) for each in tensors_of(structure, batch)]
    return tf.reshape(tf.stack(strings), [1, len(strings)])


def explained(
    structure: BatchStructure, rows: tf.Tensor, error: tf.errors.OpError
) -> Exception:
    """Returns the error of a step on some rows, with what it read if they are leases."""
    if isinstance(structure, LeasedBatches):
        return structure.explained(rows, error)
    return error


def as_tensors(batch: Any) -> Any:
    """Converts each array of a structure to a tensor; keeps None."""

    def as_tensor(value: Any) -> Any:
        if value is None or isinstance(value, tf.__internal__.CompositeTensor):
            return value
        return tf.convert_to_tensor(value)

    return tf.nest.map_structure(as_tensor, batch)
