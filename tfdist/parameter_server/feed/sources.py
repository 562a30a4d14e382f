"""Sources of batches, which are the only argument of a worker's function.

TensorFlow sends every argument of a remote function in a separate message. Serialized into
rows of strings, the batches of one or more steps travel in one message, in any
structure. So the chief sends batches, or leases; workers read an endless dataset.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.keras.batch_structure import BatchStructure


class Source(ABC):
    """Takes batches out of a function's argument, while the function is traced.

    Args:
        structure: The structure of each batch.
    """

    def __init__(self, structure: BatchStructure) -> None:
        self.structure = structure

    @property
    def key(self) -> tuple[type, str]:
        """A key that is equal for sources which take batches in the same way."""
        return type(self), self.structure.key

    @abstractmethod
    def spec(self, steps: int, tickets: Sequence[tf.TensorSpec] = ()) -> tf.TypeSpec:
        """Returns the spec of the argument of a function of `steps` steps."""

    @abstractmethod
    def part(self, argument: Nest, first: int | tf.Tensor, steps: int) -> Nest:
        """Returns the argument for some of its steps, beginning with `first`."""

    @abstractmethod
    def tensors(
        self,
        argument: Nest,
        step: int | tf.Tensor,
        tickets: Sequence[tf.TensorSpec] = (),
    ) -> list[tf.Tensor]:
        """Returns the tensors of a step's batch, and its tickets."""

    def explained(self, argument: Nest, error: tf.errors.OpError) -> Exception:
        """Returns the exception for the error of a function of this argument."""
        return error


class ChiefBatches(Source):
    """Batches that the chief reads and sends, as rows; tickets may follow each batch.

    Attributes:
        row_structure: The structure of what a row has.
    """

    def __init__(self, structure: BatchStructure) -> None:
        super().__init__(structure)
        self.row_structure = structure

    def row(self, batch: Nest) -> tf.Tensor:
        """Returns a batch as a matrix of one row, with one string per tensor."""
        tensors = tensors_of(self.row_structure, batch)
        strings = [tf.io.serialize_tensor(each) for each in tensors]
        return tf.reshape(tf.stack(strings), [1, len(strings)])

    def spec(self, steps: int, tickets: Sequence[tf.TensorSpec] = ()) -> tf.TypeSpec:
        """Returns the spec of a matrix of strings."""
        width = len(tensor_specs(self.row_structure)) + len(tickets)
        return tf.TensorSpec([steps, width], tf.string)

    def part(self, argument: Nest, first: int | tf.Tensor, steps: int) -> Nest:
        """Returns some of the rows."""
        rows = argument[first : first + steps]
        # If `first` is a tensor, the slice has lost its length.
        return tf.ensure_shape(rows, [steps, argument.shape[1]])

    def tensors(
        self,
        argument: Nest,
        step: int | tf.Tensor,
        tickets: Sequence[tf.TensorSpec] = (),
    ) -> list[tf.Tensor]:
        """Returns the tensors of a row."""
        row = argument[step]
        specs = tensor_specs(self.row_structure)
        of_row = [_parsed(row[i], spec) for i, spec in enumerate(specs)]
        # One ticket at most, the last string of the row.
        return self.read(of_row) + [_parsed(row[-1], spec) for spec in tickets]

    def read(self, of_row: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors of a batch, given the contents of its row."""
        return of_row


def row_of(batch: Nest) -> tuple[ChiefBatches, tf.Tensor]:
    """Returns the source and the row of a single batch from the user."""
    tensors = tf.nest.map_structure(_as_tensor, batch)
    source = ChiefBatches(BatchStructure.of_batch(tensors))
    return source, source.row(tensors)


def _as_tensor(value: Any) -> Any:
    # Ragged and sparse values have tensors already; None stands for no targets or weights.
    if value is None or isinstance(value, tf.__internal__.CompositeTensor):
        return value
    return tf.convert_to_tensor(value)


def tensor_specs(structure: BatchStructure) -> list[tf.TensorSpec]:
    """Returns the specs of a batch's tensors; a ragged or sparse value has several."""
    return tf.nest.flatten(list(structure.present), expand_composites=True)


def tensors_of(structure: BatchStructure, batch: Nest) -> list[tf.Tensor]:
    """Returns the tensors of a batch, in the order of `tensor_specs`."""
    return tf.nest.flatten(list(structure.flatten(batch)), expand_composites=True)


def pack(structure: BatchStructure, tensors: list[tf.Tensor]) -> Nest:
    """Returns the batch with these tensors."""
    present = list(structure.present)
    return structure.pack(
        tf.nest.pack_sequence_as(present, tensors, expand_composites=True)
    )


def _parsed(string: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    # `parse_tensor` returns an unknown shape, and layers need the rank.
    return tf.ensure_shape(tf.io.parse_tensor(string, spec.dtype), spec.shape)
