"""Each worker's share of the data that `fit`, `evaluate` and `predict` are given.

A batch of the data is a batch of the whole cluster. Every worker reads all of them
and keeps its own rows, so that a step sees the examples that one process alone would
see. Data that is the worker's own from the start (its files, say) is read as it is.
"""

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.keras.batch_structure import BatchStructure, as_element
from tfdist.keras.deletion import delete_in_background
from tfdist.synchronous.fit import shuffle as shuffling
from tfdist.synchronous.fit.row_range import row_range

_POLICY = tf.data.experimental.AutoShardPolicy
# The total of a batch that no worker alone knows.
_TO_BE_SUMMED = -1
_draws = itertools.count()


class UnequalDataError(ValueError):
    """The workers were given data that cannot be parts of the same batches."""


class ShardedIterator:
    """This worker's share of the batches, one after the other.

    Attributes:
        values: Yields for ever `(count, total, what the batch holds)`, of each device.
            Behind the last batch, the count and the total are 0.
        structure: Of a batch.
        knows_totals: Whether the totals are right; the sum of the counts is, else.
    """

    def __init__(
        self,
        open_values: Callable[[], Any],
        structure: BatchStructure,
        knows_totals: bool,
    ) -> None:
        self._open_values = open_values
        self.structure = structure
        self.knows_totals = knows_totals

    def __del__(self) -> None:
        if "values" in self.__dict__:
            delete_in_background([self.__dict__.pop("values")])

    # Keras makes two iterators an epoch, and uses one.
    @functools.cached_property
    def values(self) -> Any:
        """The iterator over the shares, made when it is first asked for."""
        return self._open_values()

    def __iter__(self) -> "ShardedIterator":
        return self

    # `predict` gets a batch here, and gives it to a function. The shapes of a batch
    # differ between workers, and each has to trace as often as the others.
    def __next__(self) -> "ShardedIterator":
        return self


class ShardedData:
    """The data of one call of `fit`, `evaluate` or `predict`.

    All workers make it at the same time, and agree on its order.

    Args:
        adapter: Keras's data adapter.
        strategy: The `MultiWorkerMirroredStrategy`.

    Raises:
        UnequalDataError: If the workers have different numbers of batches.
    """

    def __init__(self, adapter: Any, strategy: Any) -> None:
        self._strategy = strategy
        self._adapter = adapter
        self._epoch = 0
        self._agree()
        source = self._read()
        self.is_own = is_own_data(source)
        if not self.is_own and len(set(self._lengths)) > 1:
            raise UnequalDataError(
                f"the workers were given {', '.join(map(str, self._lengths))} batches "
                "(-1: unknown). Give all of them the same data, of which each takes "
                "its own rows, or set AutoShardPolicy.OFF in the options of a dataset "
                "that is the worker's own"
            )
        self._knows_totals = not self.is_own and self._lengths[0] != -1
        self._shares = self._share(source)

    @property
    def element_spec(self) -> Any:
        """The structure of type specs of a batch."""
        return self.structure.specs

    @property
    def num_batches(self) -> int | None:
        """The number of steps of an epoch; None if only running them will tell."""
        return None if self.is_own else self._adapter.num_batches

    def __iter__(self) -> ShardedIterator:
        return ShardedIterator(self._open_values, self.structure, self._knows_totals)

    def _open_values(self) -> Any:
        draws_anew = self._reseeds or shuffling.shuffles_arrays(self._adapter)
        if self._epoch and draws_anew:
            self._shares = self._share(self._read())
        self._epoch += 1
        return iter(self._strategy.distribute_shares(self._shares))

    def _agree(self) -> None:
        """Has all workers shuffle in one order, and tell how many batches they have."""
        length = self._adapter.num_batches
        checksum, unseeded = shuffling.seeds_of(
            getattr(self._adapter, "_dataset", None)
        )
        table = self._strategy.extended.gather_numbers(
            [
                _drawn_aside(),
                -1 if length is None else length,
                checksum,
                unseeded,
            ]
        )
        self._seed = int(table[0, 0])
        self._lengths = table[:, 1].tolist()
        self._reseeds = bool((table[:, 2] != table[0, 2]).any() or table[:, 3].any())
        shuffling.reorder_py_dataset(self._adapter, self._seed)

    def _read(self) -> Any:
        with _tf.seeded(self._seed + self._epoch):
            dataset = self._adapter.get_tf_dataset()
        return getattr(dataset, "tfdist_source", dataset)

    def _share(self, source: Any) -> tf.data.Dataset:
        workers, replicas = self._strategy.num_workers, self._strategy.num_replicas
        index = self._strategy.extended.worker_index
        local = replicas // workers
        if self.is_own:
            dataset = _own_batches(source, workers, index, replicas)
        elif self._reseeds:
            dataset = shuffling.with_agreed_shuffles(
                source, self._seed + 997 * self._epoch
            )
        else:
            dataset = source
        self.structure = BatchStructure(dataset.element_spec)
        if self.is_own:
            shares = dataset.map(lambda *batch: _whole(self.structure.flatten(batch)))
        else:
            mine = range(index * local, (index + 1) * local)
            shares = _rows(dataset, self.structure, mine, replicas)
        if not self._knows_totals:
            shares = shares.map(lambda n, _, batch: (n, _int64(_TO_BE_SUMMED), batch))
        return _without_end(shares, repeat_last=not self._knows_totals)


def is_own_data(source: Any) -> bool:
    """Whether a dataset, or a function that makes one, is each worker's own."""
    own = (_POLICY.OFF, _POLICY.FILE, _POLICY.HINT)
    return callable(source) or _policy(source) in own


def _policy(dataset: tf.data.Dataset) -> Any:
    return dataset.options().experimental_distribute.auto_shard_policy


def _own_batches(
    source: Any, workers: int, index: int, replicas: int
) -> tf.data.Dataset:
    """The batches of one replica's size that a worker reads from data of its own."""
    if callable(source):
        return source(tf.distribute.InputContext(workers, index, replicas))
    batch_size = _tf.batch_size_of(source)
    if batch_size is None:
        raise UnequalDataError(
            "the batch size of this dataset cannot be told, and it has to be divided "
            "among the workers: let `batch` be its last transformation but `map`, "
            "`prefetch` and `repeat`"
        )
    if _policy(source) != _POLICY.OFF:
        source = _tf.shard_files(source, workers, index)
    return source.rebatch(max(1, batch_size // replicas))


def _rows(
    dataset: tf.data.Dataset, structure: BatchStructure, mine: range, replicas: int
) -> tf.data.Dataset:
    """This worker's rows of each batch: an element for each of its replicas."""

    def split(*batch: Any) -> tuple[Any, ...]:
        present = structure.flatten(as_element(batch))
        total = row_count(present[0])
        return tuple(slice_rows(present, total, replicas, each) for each in mine)

    parts = dataset.map(split, num_parallel_calls=tf.data.AUTOTUNE)
    if len(mine) == 1:
        return parts.map(lambda part: part)

    def one_by_one(*parts: Any) -> tf.data.Dataset:
        elements = [tf.data.Dataset.from_tensors(part) for part in parts]
        for each in elements[1:]:
            elements[0] = elements[0].concatenate(each)
        return elements[0]

    return parts.flat_map(one_by_one)


def slice_rows(
    present: tuple[Any, ...], total: tf.Tensor, replicas: int, replica: Any
) -> tuple[tf.Tensor, tf.Tensor, tuple[Any, ...]]:
    """One replica's rows of a batch: `(count, total, rows)`.

    A replica that has none computes a row of another, which does not count.
    """
    begin, end = row_range(total, replicas, replica)
    count = end - begin
    begin = tf.minimum(begin, tf.maximum(total - 1, 0))
    end = tf.maximum(end, tf.minimum(begin + 1, total))
    return count, total, tuple(_slice(value, begin, end) for value in present)


def _slice(value: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
    if isinstance(value, tf.SparseTensor):
        rank = value.shape.rank
        start = tf.concat([[begin], tf.zeros([rank - 1], tf.int64)], 0)
        size = tf.concat([[end - begin], value.dense_shape[1:]], 0)
        return tf.sparse.slice(value, start, size)
    return value[begin:end]


def _whole(present: tuple[Any, ...]) -> tuple[tf.Tensor, tf.Tensor, tuple[Any, ...]]:
    # Sliced, a batch of a known size has the rows of unknown number that all others have.
    count = row_count(present[0])
    rows = tuple(_slice(value, _int64(0), count) for value in present)
    return count, _int64(_TO_BE_SUMMED), rows


def _without_end(shares: tf.data.Dataset, repeat_last: bool) -> tf.data.Dataset:
    """Puts shares of no example behind the last one.

    A worker whose data is at its end takes part in the steps of the others. It does
    so with its last batch, which does not count: one of zeros may be none that its
    model can compute.
    """
    none = (_int64(0), _int64(0), tuple(map(_one_row, shares.element_spec[2])))
    endless = shares.concatenate(tf.data.Dataset.from_tensors(none).repeat())
    if repeat_last:

        def keep(last: Any, share: Any) -> tuple[Any, Any]:
            count, total, batch = share
            batch = tf.cond(count > 0, lambda: batch, lambda: last)
            return batch, (count, total, batch)

        endless = endless.scan(none[2], keep)
    infinite = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return endless.apply(infinite).prefetch(tf.data.AUTOTUNE)


def _one_row(spec: Any) -> Any:
    shape = [1, *(size or 1 for size in (spec.shape[1:] if spec.shape.rank else []))]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.sparse.from_dense(tf.zeros(shape, spec.dtype))
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_tensor(
            tf.zeros(shape, spec.dtype),
            ragged_rank=spec.ragged_rank,
            row_splits_dtype=spec.row_splits_dtype,
        )
    return tf.zeros(shape, spec.dtype)


def row_count(value: Any) -> tf.Tensor:
    """The number of examples that a part of a batch has, a scalar int64."""
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int64)
    return tf.shape(value, tf.int64)[0]


def _int64(number: int) -> tf.Tensor:
    return tf.constant(number, tf.int64)


def _drawn_aside() -> int:
    """A number of 30 bits, the same in every run of a program that sets its seed.

    It leaves Python's own generator as it is: Keras's initializers draw their seeds
    from it, and a model that is built after a `fit` begins as in one process.
    """
    return random.Random(f"{random.getstate()} {next(_draws)}").getrandbits(30)
