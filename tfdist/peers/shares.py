"""Datasets of one worker's shares: its rows of each batch, or batches of its own."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.errors import Error
from tfdist.data.leased import LeasedDataset
from tfdist.keras.batch_structure import BatchStructure, as_element, of_any_rows
from tfdist.keras.distributed_data import InputPipelines


def row_range(rows: int, replicas: int, replica: int) -> tuple[int, int]:
    """Returns one replica's rows of a batch, as [begin, end).

    Replicas' numbers of rows differ by at most one. All ranges together, in the order of
    the replicas, are the batch. Arguments may be integer tensors.

    >>> [row_range(10, 4, replica) for replica in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    >>> row_range(1, 2, 0)
    (0, 0)
    """
    return rows * replica // replicas, rows * (replica + 1) // replicas


_UNEQUAL = "the inputs of a batch have different numbers of rows"
_OTHER_ROWS = (
    f"{_UNEQUAL}, which cannot be divided among {{0}} replicas in the same proportion. "
    "Choose batch sizes that are multiples of {0}, with drop_remainder=True. Or join the "
    "inputs in one array"
)
_OTHER_ROWS_OF_ITS_OWN = (
    f"{_UNEQUAL}, and each worker has data of its own, so their proportion in the whole "
    "batch is unknown. Use equal batch sizes, or pass all data to every worker "
    "(AutoShardPolicy.AUTO), which then takes its own rows"
)
_TOO_FEW_FILES = "Could not apply FILE based sharding"
_POLICY = tf.data.experimental.AutoShardPolicy
# Stands for the total of a batch that no worker knows alone.
TO_BE_SUMMED = -1


class UnequalDataError(Error, ValueError):
    """The workers have data that cannot be parts of the same batches."""


def is_own_data(source: Any) -> bool:
    """Returns True if each worker has its own data, a dataset or a dataset function."""
    own = (_POLICY.OFF, _POLICY.FILE, _POLICY.HINT)
    return isinstance(source, InputPipelines) or _policy(source) in own


def _policy(dataset: tf.data.Dataset) -> Any:
    return dataset.options().experimental_distribute.auto_shard_policy


def own_batches(
    source: Any, workers: int, index: int, replicas: int
) -> tf.data.Dataset:
    """Returns batches of one replica's size from a worker's own data."""
    if isinstance(source, InputPipelines):
        (batches,) = source.pipelines
        return batches
    is_leased = isinstance(source, LeasedDataset)
    if is_leased and _policy(source) != _POLICY.OFF:
        raise UnequalDataError(
            f"AutoShardPolicy.{_policy(source).name} divides the files of a dataset among "
            "the workers, and a source of tfdist.data is no dataset of files. Leave the "
            "policy out, and each worker takes its own rows of each batch; or give each "
            "worker a source of its own files, with AutoShardPolicy.OFF"
        )
    # A lease has as many examples as its batch, which `map` hides.
    batch_size = _tf.batch_size_of(source.leases if is_leased else source)
    if batch_size is None:
        raise UnequalDataError(
            "the batch size of this dataset is unknown, but has to be divided among "
            "the workers. Call `batch` last; only `map`, `prefetch` and `repeat` may "
            "follow it"
        )
    if _policy(source) != _POLICY.OFF:
        source = _tf.shard_files(source, workers, index)
    return source.rebatch(max(1, batch_size // replicas))


@contextlib.contextmanager
def naming_unequal_data(workers: int) -> Iterator[None]:
    """Gives errors of data that is found out to be unequal as it is read their class.

    With fewer files than workers, TensorFlow advises to turn sharding off, and then
    every example would be trained on once per worker.

    Raises:
        UnequalDataError: If there are too few files, or rows that cannot be divided.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if rows := re.search(rf"{_UNEQUAL}[^\]]*", error.message):
            raise UnequalDataError(rows[0]) from None
        if _TOO_FEW_FILES not in error.message:
            raise
        raise UnequalDataError(
            "AutoShardPolicy.FILE gives each worker files of its own, but this dataset "
            f"has fewer than the {workers} workers. Leave the policy out: every worker "
            "then reads all files and takes its own rows of each batch. Or write the data "
            "into more files"
        ) from None


def rows_of_each(batches: tf.data.Dataset) -> int:
    """Returns the number of rows of every batch of endless data; 0 if they differ."""
    if batches.cardinality() != tf.data.INFINITE_CARDINALITY:
        return 0
    leaves = tf.nest.flatten(batches.element_spec)
    specs = [spec for spec in leaves if isinstance(spec, tf.TensorSpec)]
    rows = {spec.shape[0] if spec.shape.rank else None for spec in specs}
    return (rows.pop() or 0) if len(rows) == 1 else 0


def rows_of_replicas(
    dataset: tf.data.Dataset, structure: BatchStructure, mine: range, replicas: int
) -> tf.data.Dataset:
    """Returns this worker's rows of each batch: one element per local replica."""

    def split(*batch: Any) -> tuple[Any, ...]:
        present = structure.flatten(as_element(batch))
        total = row_count(present[0])
        parts = tuple(slice_rows(present, total, replicas, each) for each in mine)
        return parts if len(mine) > 1 else parts[0]

    parts = dataset.map(split, num_parallel_calls=tf.data.AUTOTUNE)
    if len(mine) == 1:
        return parts

    def one_by_one(*parts: Any) -> tf.data.Dataset:
        elements = [tf.data.Dataset.from_tensors(part) for part in parts]
        for each in elements[1:]:
            elements[0] = elements[0].concatenate(each)
        return elements[0]

    return parts.flat_map(one_by_one)


def slice_rows(
    present: tuple[Any, ...], total: tf.Tensor, replicas: int, replica: Any
) -> tuple[tf.Tensor, tf.Tensor, tuple[Any, ...]]:
    """Returns one replica's rows of a batch: `(count, total, rows)`.

    A replica without rows gets another's row and a count of 0. It must run the step, or
    the others wait for it in their collectives; and a model may fail on a batch of no
    rows, or return NaN for it.
    """
    if replicas == 1:
        return total, total, tuple(map(_all_rows, present))
    first, *others = present
    begin, end = row_range(total, replicas, replica)
    count = end - begin
    rows = [_share(first, begin, end, total)]
    for each in others:
        its_total = row_count(each)
        begin, end = row_range(its_total, replicas, replica)
        # The weight of a replica is its share of the first input.
        proportional = tf.debugging.assert_equal(
            (end - begin) * total, count * its_total, _OTHER_ROWS.format(replicas)
        )
        with tf.control_dependencies([proportional]):
            rows.append(_share(each, tf.identity(begin), end, its_total))
    return count, total, tuple(rows)


def _share(value: Any, begin: tf.Tensor, end: tf.Tensor, total: tf.Tensor) -> Any:
    """Returns some rows of an input, and one of them in place of none."""
    begin = tf.minimum(begin, tf.maximum(total - 1, 0))
    end = tf.maximum(end, tf.minimum(begin + 1, total))
    return _slice(value, begin, end)


def _slice(value: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
    if isinstance(value, tf.SparseTensor):
        rank = value.shape.rank
        start = tf.concat([[begin], tf.zeros([rank - 1], tf.int64)], 0)
        size = tf.concat([[end - begin], value.dense_shape[1:]], 0)
        return tf.sparse.slice(value, start, size)
    rows = value[begin:end]
    if isinstance(rows, tf.RaggedTensor):
        return rows
    # A slice of a batch of known size has a known size, too. A step that took the one row
    # of its part for the batch's size would be analysed as one on a single example.
    return tf.raw_ops.PlaceholderWithDefault(
        input=rows, shape=of_any_rows(tf.type_spec_from_value(rows)).shape
    )


def _all_rows(value: Any) -> Any:
    # A slice has no static number of rows. The kinds of numbers are read from the unknown
    # dimension, and one signature fits the batches of all workers.
    return _slice(value, int64(0), row_count(value))


def whole_batch(
    present: tuple[Any, ...], total: int | None
) -> tuple[tf.Tensor, tf.Tensor, tuple[Any, ...]]:
    """Returns all rows of a batch of a worker's own, with the total if it is known."""
    counts = [row_count(value) for value in present]
    count = counts[0]
    equal = [
        tf.debugging.assert_equal(each, count, _OTHER_ROWS_OF_ITS_OWN)
        for each in counts[1:]
    ]
    with tf.control_dependencies(equal):
        rows = tuple(map(_all_rows, present))
    return count, int64(TO_BE_SUMMED if total is None else total), rows


def without_end(shares: tf.data.Dataset, repeat_last: bool) -> tf.data.Dataset:
    """Appends endless shares without examples.

    A worker whose own data has ended still takes part in the steps of the others, which
    would wait for it. It repeats its last batch with a count of 0: a batch of zeros may
    not be valid input for its model.
    """
    none = (int64(0), int64(0), tuple(map(_one_row, shares.element_spec[2])))
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
    """Returns the number of examples in a component of a batch, a scalar int64."""
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int64)
    return tf.shape(value, tf.int64)[0]


def int64(number: int) -> tf.Tensor:
    """Returns a scalar int64."""
    return tf.constant(number, tf.int64)
