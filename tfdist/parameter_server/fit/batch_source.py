"""Where the batches of a function come from: its only argument."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.fit import message


class BatchSource(ABC):
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


class RowSource(BatchSource):
    """The batches themselves, as rows; tickets may follow each batch."""

    def __init__(
        self, structure: BatchStructure, tickets: Sequence[tf.TensorSpec] = ()
    ) -> None:
        super().__init__(structure)
        self._tickets = tickets

    def spec(self, steps: int) -> tf.TypeSpec:
        """Returns the spec of a matrix of strings."""
        width = len(message.row_specs(self.structure)) + len(self._tickets)
        return tf.TensorSpec([steps, width], tf.string)

    def part(self, argument: Any, first: Any, steps: int) -> Any:
        """Returns some of the rows."""
        return tf.ensure_shape(argument[first : first + steps], self.spec(steps).shape)

    def tensors(self, argument: Any, step: Any) -> list[tf.Tensor]:
        """Returns the tensors of a row."""
        row = argument[step]
        return message.tensors_from_row(self.structure, row) + [
            tf.ensure_shape(tf.io.parse_tensor(row[-1], spec.dtype), spec.shape)
            for spec in self._tickets
        ]


class IteratorSource(BatchSource):
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
