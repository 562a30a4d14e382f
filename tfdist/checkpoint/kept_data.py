"""The batches of a `fit` that one process reads, from where a checkpoint left off."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.checkpoint.snapshot import Snapshot


class KeptIterator(Iterator[Any]):
    """Reads a dataset, and counts its batches, with those before the checkpoint.

    There is no seed: what is drawn is in `state()`.
    """

    seed = 0

    def __init__(self, data: "KeptData") -> None:
        self._data = data
        self._batches: Any = None
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

    def __init__(self, dataset: Any, start: Snapshot | None) -> None:
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
            with contextlib.suppress(tf.errors.OpError):  # Of another dataset.
                _tf.restore_iterator(iterator, start.data)
                return iterator
        # Each iteration over a dataset that shuffles has an order of its own.
        for _ in range(start.iterations):
            iter(self._dataset)
        return iter(self._dataset.skip(start.position.batches))
