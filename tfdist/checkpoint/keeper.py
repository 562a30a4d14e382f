"""The checkpoints of every `fit` of a program in which all replicas step together.

Where one process reads the data, its batches continue from where a checkpoint left off.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tf_config.contract import CHECKPOINT_DIR
from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.checkpoint.kept_fit import Group, KeptFit, told_if_not_kept
from tfdist.checkpoint.snapshot import Snapshot
from tfdist.checkpoint.store import CheckpointStore
from tfdist.cluster.settings import Checkpoints


class Keeper:
    """Keeps the checkpoints of every `fit`, each in a directory of its own.

    `join` waits for the steps that are in flight.
    """

    def __init__(
        self,
        options: Checkpoints,
        group: Callable[[], Group],
        join: Callable[[], None],
    ) -> None:
        self._options = options
        self._group = group
        self._join = join
        self._fit: KeptFit | None = None
        self._fits = 0

    @contextlib.contextmanager
    def keeping(
        self, model: keras.Model, callbacks: list[keras.callbacks.Callback], epochs: int
    ) -> Iterator[KeptFit | None]:
        """Surrounds a `fit`; yields the callback to add after the others, or None.

        The callbacks include one for the history. Raises ValueError if only some
        processes have a directory.
        """
        # A callback may itself call `fit`. That inner call writes no checkpoints.
        if self._fit is not None:
            yield None
            return
        group = self._group()
        # Asked in any case: the other processes wait for this one's answer.
        keeps = self._options.directory is not None
        if len(set(group.gather_numbers([keeps])[:, 0].tolist())) > 1:
            raise ValueError(
                "some tasks have a directory for checkpoints, and others have none: pass "
                f"the same checkpoint_dir, or set {CHECKPOINT_DIR} on all of them, or on "
                "none (the launcher's --checkpoint_dir does). The chief's is used"
            )
        if self._options.directory is None:
            with told_if_not_kept(self._options.directory):
                yield None
            return
        # Numbered, so that a restarted program finds its n-th `fit`.
        directory = Path(self._options.directory, f"fit-{self._fits:03d}")
        self._fits += 1
        with contextlib.ExitStack() as stack:
            store = None
            if group.is_chief:
                kept = CheckpointStore(directory, self._options.keep)
                store = stack.enter_context(kept)
            options, join = self._options, self._join
            fit = KeptFit(options, store, group, callbacks, epochs, join)
            fit.find()
            self._fit = fit
            try:
                yield fit
            finally:
                self._fit = None
                # Otherwise the next `fit` of this model would begin at this epoch too.
                model._initial_epoch = None
                fit.drain()

    @property
    def is_keeping(self) -> bool:
        """True if a `fit` with checkpoints is running."""
        return self._fit is not None

    def start_of_data(self) -> Snapshot | None:
        """Returns where the data that is asked for begins; None for its beginning."""
        return self._fit.start_of_data() if self._fit else None

    def follow(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Passes on the steps of an epoch, without those before the checkpoint."""
        return self._fit.follow(epoch_iterator, steps) if self._fit else steps


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
