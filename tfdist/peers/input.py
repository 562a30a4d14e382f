"""Each worker's share of the data passed to `fit`, `evaluate` and `predict`.

A batch of the data is a batch of the whole cluster. Every worker reads every batch and
keeps its own rows, so a step sees the same examples as it would in one process. Data
that belongs to one worker from the start, such as its own files, is read unchanged.
"""

import functools
import inspect
import random
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.checkpoint.snapshot import Snapshot
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.deletion import delete_in_background
from tfdist.peers import shuffle as shuffling
from tfdist.peers.peers import Sharers
from tfdist.peers.shares import (
    TO_BE_SUMMED,
    UnequalDataError,
    int64,
    is_own_data,
    own_batches,
    rows_of_each,
    rows_of_replicas,
    whole_batch,
    without_end,
)

_of_tensorflow, _of_python = shuffling.Draws(), shuffling.Draws()


_read: "weakref.WeakSet[Any]" = weakref.WeakSet()


def check_read_once(arguments: Mapping[str, Any]) -> None:
    """Checks that no earlier call has read a generator, on several workers.

    Raises:
        UnequalDataError: If one has.
    """
    for name in ("x", "validation_data"):
        generator = arguments.get(name)
        if not inspect.isgenerator(generator):
            continue
        if generator in _read:
            raise UnequalDataError(
                f"{name} is a generator that an earlier call has read. Each worker has "
                "read ahead of it by another number of batches, so the workers would "
                "train on rows of different batches. Pass each call a generator of its "
                "own, or train in one call, with steps_per_epoch and epochs"
            )
        _read.add(generator)


@dataclass(frozen=True)
class Totals:
    """Properties of the whole cluster's batches that are known before they are read.

    Attributes:
        are_known: Whether each element has the total of its batch. If not, the total is
            the sum of all replicas' counts.
        of_each: The number of examples of every batch, if the data of all workers is
            endless and each has batches of one size.
        has_rows: Whether every replica has an example of every batch.
    """

    are_known: bool
    of_each: int | None = None
    has_rows: bool = False


@dataclass(eq=False)
class ShardedIterator:
    """Iterator over this worker's share of the batches.

    Attributes:
        values: Yields `(count, total, components of the batch)` per device, endlessly.
            After the last batch, the count and the total are 0.
        structure: The structure of a batch.
        totals: Properties of the batches that are known before they are read.
        steps_requested: How many steps to take next; None for `steps_per_execution`.
        taken: How many steps have run, including those before a checkpoint.
        seed: The seed of the order of the data.
        iterations: How many iterations over the data came before.
    """

    open_values: Callable[[], Any]
    structure: BatchStructure
    totals: Totals
    seed: int = 0
    iterations: int = 0
    taken: int = 0

    def __post_init__(self) -> None:
        self.steps_requested: int | None = None

    def __del__(self) -> None:
        if "values" in self.__dict__:
            delete_in_background([self.__dict__.pop("values")])

    # Keras creates two iterators per epoch and uses one: opening both would count two
    # epochs and start two pipelines.
    @functools.cached_property
    def values(self) -> Nest:
        """The iterator over the shares, opened on first use."""
        return self.open_values()

    def __iter__(self) -> "ShardedIterator":
        return self

    def state(self) -> None:
        """Returns no state, because `seed` and `taken` tell what to read."""

    # Keras's `predict` takes a batch here and passes it to a function. A share's number of
    # rows differs between workers. Passing the iterator instead has all workers call one
    # function, with the same collectives in the same order.
    def __next__(self) -> "ShardedIterator":
        return self


@dataclass(eq=False)
class ShardedData:
    """The data of one call of `fit`, `evaluate` or `predict`.

    All workers construct it at the same time and agree on its order. The first iteration
    continues from the checkpoint `start`, if there is one.

    Raises:
        UnequalDataError: If the workers have different numbers of batches.
    """

    adapter: Any
    peers: Sharers
    start: Snapshot | None = None

    def __post_init__(self) -> None:
        self._epoch = self.start.iterations if self.start else 0
        self._agree()
        source = self._read()
        self.is_own = is_own_data(source)
        if not self.is_own and len(set(self._lengths)) > 1:
            raise UnequalDataError(
                f"the workers were given {', '.join(map(str, self._lengths))} batches "
                "(-1: unknown). Pass the same data to all of them, and each takes its "
                "own rows; or, if each worker has its own dataset, set "
                "AutoShardPolicy.OFF in its options"
            )
        batches = self._batches(source)
        self._totals = self._known(batches)
        self._shares = self._share(batches)

    @property
    def element_spec(self) -> Nest:
        """The structure of type specs of a batch."""
        return self.structure.specs

    @property
    def num_batches(self) -> int | None:
        """The number of steps of an epoch; None if unknown until the data ends."""
        return None if self.is_own else self.adapter.num_batches

    def __iter__(self) -> ShardedIterator:
        return ShardedIterator(
            self._open_values,
            self.structure,
            self._totals,
            self._seed,
            self._epoch,
            self.start.position.batches if self.start else 0,
        )

    def _open_values(self) -> Any:
        start, self.start = self.start, None
        if self._epoch and self._draws_again:
            self._shares = self._share(self._batches(self._read()))
        elif start is not None:
            # Each iteration over a dataset that shuffles has an order of its own.
            for _ in range(self._epoch):
                iter(self.peers.distribute_shares(self._shares))
        self._epoch += 1
        shares = self._shares
        if start is not None:
            local = self.peers.num_replicas // self.peers.num_workers
            shares = shares.skip(start.position.batches * local)
        return iter(self.peers.distribute_shares(shares))

    @property
    def _draws_again(self) -> bool:
        """True if the order of the data is drawn, and shared, anew in each epoch."""
        return self._reseeds or shuffling.shuffles_arrays(self.adapter)

    def _agree(self) -> None:
        """Agrees on one shuffle order, and gathers every worker's number of batches."""
        length = self.adapter.num_batches
        checksum, unseeded = shuffling.seeds_of(getattr(self.adapter, "_dataset", None))
        table = self.peers.gather_numbers(
            [
                _drawn_aside(self.adapter),
                -1 if length is None else length,
                checksum,
                unseeded,
            ]
        )
        # Everyone takes worker 0's draw.
        self._seed = self.start.seed if self.start else int(table[0, 0])
        self._lengths = table[:, 1].tolist()
        self._reseeds = bool((table[:, 2] != table[0, 2]).any() or table[:, 3].any())
        shuffling.reorder_py_dataset(self.adapter, self._seed, self._epoch)

    def _known(self, batches: tf.data.Dataset) -> Totals:
        """Returns the knowledge of this worker, or of all of them, about the batches.

        Cost: a message of 8 bytes per worker if each has data of its own.
        """
        replicas = self.peers.num_replicas
        if not self.is_own:
            fewest = _fewest_rows(self.adapter)
            return Totals(self._lengths[0] != -1, has_rows=fewest >= replicas)
        local = replicas // self.peers.num_workers
        rows = self.peers.gather_numbers([rows_of_each(batches)])[:, 0]
        total = int(rows.sum()) * local if rows.all() else None
        return Totals(total is not None, total, has_rows=total is not None)

    def _read(self) -> Any:
        # Keras shuffles arrays with the global seed, which workers need not share.
        with _tf.seeded(self._seed + self._epoch):
            return self.adapter.get_tf_dataset()

    def _batches(self, source: Any) -> tf.data.Dataset:
        """Returns this worker's own batches, or those of the whole cluster."""
        if self.is_own:
            workers, replicas = self.peers.num_workers, self.peers.num_replicas
            index = self.peers.worker_index
            return own_batches(source, workers, index, replicas)
        if self._reseeds:
            # Far from the last epoch's: each operation that draws takes the next
            # number.
            seed = self._seed + 997 * self._epoch
            return shuffling.with_agreed_seeds(source, seed)
        return source

    def _share(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        replicas = self.peers.num_replicas
        index = self.peers.worker_index
        local = replicas // self.peers.num_workers
        self.structure = BatchStructure(dataset.element_spec)
        if self.is_own:
            total = self._totals.of_each
            shares = dataset.map(
                lambda *batch: whole_batch(self.structure.flatten(batch), total)
            )
        else:
            mine = range(index * local, (index + 1) * local)
            shares = rows_of_replicas(dataset, self.structure, mine, replicas)
        if not self._totals.are_known:
            shares = shares.map(lambda n, _, batch: (n, int64(TO_BE_SUMMED), batch))
        return without_end(shares, repeat_last=not self._totals.are_known)


def _fewest_rows(adapter: Any) -> int:
    """Returns the fewest rows of a batch that a Keras adapter yields; 0 if unknown."""
    try:
        size, last = adapter.batch_size or 0, adapter.partial_batch_size or 0
    except NotImplementedError:
        # Every batch of a `PyDataset`, for example, may have another size.
        return 0
    return min(size, last or size)


def _drawn_aside(adapter: Any) -> int:
    """Returns 30 random bits, the same in every run of a program that sets its seed.

    Keras's arrays are in an order of TensorFlow's seed, if it has one; all else is in one
    of Python's generator. That is not advanced: Keras's initializers draw their seeds from
    it, and a model built after a `fit` should start as it does in one process.
    """
    seed, renewed = _tf.seeding()
    if seed is not None and shuffling.shuffles_arrays(adapter):
        return _of_tensorflow.draw(seed, renewed)
    state = random.getstate()
    return _of_python.draw(state, (state, renewed))
