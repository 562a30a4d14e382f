"""Where the batches of a function come from: its only argument.

The chief sends batches or leases, as rows; an endless dataset is read by the worker.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.fit import message
from tfdist.parameter_server.fit.leased_batches import LeasedBatches


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
        return type(self), self.structure.row_key

    @abstractmethod
    def spec(self, steps: int) -> tf.TypeSpec:
        """Returns the spec of the argument of a function of so many steps."""

    @abstractmethod
    def part(self, argument: Any, first: Any, steps: int) -> Any:
        """Returns the argument for some of its steps, beginning with `first`."""

    @abstractmethod
    def tensors(self, argument: Any, step: Any) -> list[tf.Tensor]:
        """Returns the tensors of a step's batch."""


class RowSource(Source):
    """The chief's batches, as rows; tickets may follow each batch."""

    def __init__(
        self, structure: BatchStructure, tickets: Sequence[tf.TensorSpec] = ()
    ) -> None:
        super().__init__(structure)
        self._tickets = tickets

    @property
    def _row_specs(self) -> list[tf.TensorSpec]:
        return message.tensor_specs(self.structure)

    def spec(self, steps: int) -> tf.TypeSpec:
        """Returns the spec of a matrix of strings."""
        width = len(self._row_specs) + len(self._tickets)
        return tf.TensorSpec([steps, width], tf.string)

    def part(self, argument: Any, first: Any, steps: int) -> Any:
        """Returns some of the rows."""
        return tf.ensure_shape(argument[first : first + steps], self.spec(steps).shape)

    def tensors(self, argument: Any, step: Any) -> list[tf.Tensor]:
        """Returns the tensors of a row."""
        row = argument[step]
        of_row = [_parsed(row[i], spec) for i, spec in enumerate(self._row_specs)]
        return self._read(of_row) + [_parsed(row[-1], spec) for spec in self._tickets]

    def _read(self, of_row: list[tf.Tensor]) -> list[tf.Tensor]:
        return of_row


class LeaseSource(RowSource):
    """Leases as rows, by which the worker reads the batches."""

    structure: LeasedBatches

    @property
    def _row_specs(self) -> list[tf.TensorSpec]:
        return message.tensor_specs(self.structure.lease)

    def _read(self, of_row: list[tf.Tensor]) -> list[tf.Tensor]:
        return self.structure.read(of_row)


def source_of_rows(
    structure: BatchStructure, tickets: Sequence[tf.TensorSpec]
) -> RowSource:
    """Returns the source of batches whose rows have this structure."""
    is_leased = isinstance(structure, LeasedBatches)
    return (LeaseSource if is_leased else RowSource)(structure, tickets)


class IteratorSource(Source):
    """A worker's iterator, which yields a batch per step."""

    def __init__(self, structure: BatchStructure, iterator_spec: tf.TypeSpec) -> None:
        super().__init__(structure)
        self._spec = iterator_spec

    def spec(self, steps: int) -> tf.TypeSpec:
        """Returns the iterator's, whatever the number of steps."""
        del steps
        return self._spec

    def part(self, argument: Any, first: Any, steps: int) -> Any:
        """Returns the iterator."""
        del first, steps
        return argument

    def tensors(self, argument: Any, step: Any) -> list[tf.Tensor]:
        """Returns the tensors of the next batch."""
        del step
        return message.tensors_of(self.structure, next(argument))


def _parsed(string: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    # `parse_tensor` returns an unknown shape, and layers need the rank.
    return tf.ensure_shape(tf.io.parse_tensor(string, spec.dtype), spec.shape)
