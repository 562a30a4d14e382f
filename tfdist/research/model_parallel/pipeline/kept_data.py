"""Data of one process that continues from where a checkpoint left off."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.checkpoint.snapshot import Snapshot


class OneProcess:
    """The group of a script that one process runs."""

    is_chief = True

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns this process's integers."""
        return np.array([numbers], np.int64)

    def bytes_of_chief(self, data: bytes) -> bytes:
        """Returns the data."""
        return data


class KeptIterator(Iterator[Any]):
    """Reads a dataset, and counts its batches, with those before the checkpoint.

    There is no seed: what is drawn is in `state()`.
    """

    seed = 0

    def __init__(self, data: "KeptData") -> None:
        self._data = data
        self._batches: Nest = None
        self.taken = data.start.position.batches if data.start else 0
        self.iterations = data.iterations

    def __next__(self) -> Any:
        batch = next(self._open())
        self.taken += 1
        return batch

    # Keras creates two iterators per epoch and uses one.
    def _open(self) -> Any:
        if self._batches is None:
            self._batches = self._data.open()
        return self._batches

    def state(self) -> tf.Tensor | None:
        """Returns the state of the dataset's iterator, or None if it has none to save."""
        try:
            return _tf.iterator_state(self._open())
        except tf.errors.OpError:
            return None


class KeptData:
    """A dataset whose first iteration begins where a checkpoint left off."""

    def __init__(self, dataset: tf.data.Dataset, start: Snapshot | None) -> None:
        self._dataset = dataset
        self.start = start
        self.element_spec = dataset.element_spec
        self.iterations = start.iterations if start else 0

    def __iter__(self) -> KeptIterator:
        return KeptIterator(self)

    def open(self) -> Any:
        """Returns an iterator over the dataset."""
        start, self.start = self.start, None
        self.iterations += 1
        if start is None:
            return iter(self._dataset)
        if start.data is not None:
            iterator = iter(self._dataset)
            with contextlib.suppress(tf.errors.OpError):  # Another dataset's.
                _tf.restore_iterator(iterator, start.data)
                return iterator
        # Each iteration over a dataset that shuffles has an order of its own.
        for _ in range(start.iterations):
            iter(self._dataset)
        return iter(self._dataset.skip(start.position.batches))
