"""Sources of examples that every process can read, a lease at a time."""

import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data.array_file import ArrayFile, array_file
from tfdist.data.errors import SourceError
from tfdist.data.leased import LeasedDataset
from tfdist.data.record_index import record_offsets
from tfdist.data.record_places import record_at
from tfdist.data.source_files import Stamp, of_examples, of_records

# Per example and array. A larger row is worth a file of its own.
_MAX_SENT_BYTES = 1024
# Files whose records are found at the same time: on a network, each read is a wait.
_THREADS = 16
# Indices that the chief computes at once; one by one takes ten times as long.
_AT_ONCE = 1024


def from_source(
    source: Any, *, shuffle: bool = False, seed: int | None = None, block: int = 1
) -> LeasedDataset:
    """Returns the examples of arrays in files as a dataset that workers read themselves.

    On parameter servers, the chief sends a worker the indices of a batch with the step,
    and the worker reads them and runs the rest of the pipeline: no example crosses the
    chief. Every example is used once per epoch, and again only if it is part of a step
    whose worker is lost. Elsewhere this is an ordinary dataset, in the same order.

    Args:
        source: The arrays, in tuples or dictionaries as the elements of the dataset are.
            Each is the path of a `.npy` file that all tasks see, a `numpy.memmap` of one,
            or a small array in memory, such as labels or the paths of images: its rows
            travel with the leases. Examples are along the first axis.
        shuffle: Whether each epoch has the examples in an order of its own.
        seed: The seed of these orders.
        block: How many examples that follow each other stay together when shuffled. A
            disk reads a block faster than as many examples; then shuffle within:
            `from_source(..., shuffle=True, block=256).shuffle(4096)`.

    Raises:
        SourceError: If a file cannot be read in place, arrays differ in length, one in
            memory has large rows, or only Python can read the examples.
        ValueError: If `block` is not positive.

    Example:
        dataset = tfdist.data.from_source(("x.npy", "y.npy"), shuffle=True, seed=1)
        model.fit(dataset.map(augment).batch(64))
    """
    _check_arrays(source)
    flat = [_Leaf.of(each) for each in tf.nest.flatten(source)]
    examples = _common_length(flat)
    sent = [leaf.rows for leaf in flat if leaf.file is None]
    arrays = [leaf.file for leaf in flat if leaf.file is not None]

    def lease_of(index: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return index, *(tf.gather(rows, index) for rows in sent)

    def whole(index: tf.Tensor, *rows: tf.Tensor) -> Any:
        return tf.nest.pack_sequence_as(source, _rows(flat, index, rows))

    return LeasedDataset(
        _indices(examples, shuffle, seed, block).map(lease_of),
        lambda *lease: tf.data.Dataset.from_tensor_slices(whole(*lease)),
        whole,
        has_batches=False,
        source=of_examples([each.stamp for each in arrays]),
    )


def from_files(
    paths: Iterable[str | os.PathLike[str]],
    *,
    shuffle: bool = False,
    seed: int | None = None,
    block: int = 1,
) -> LeasedDataset:
    """Returns the records of TFRecord files as a dataset that workers read themselves.

    As `from_source`, with the place of each record in place of an index. The files are
    uncompressed, and at paths that all tasks see.

    Cost: opening reads 12 bytes of each record, and keeps 16 in the chief's memory.

    Args:
        paths: The files.
        shuffle: Whether each epoch has the records in an order of its own.
        seed: The seed of these orders.
        block: How many records that follow each other stay together when shuffled.

    Returns:
        A dataset of strings, for `map` to parse.

    Raises:
        SourceError: If there are no records, or a file is missing, truncated or
            compressed.
        ValueError: If `block` is not positive.

    Example:
        dataset = tfdist.data.from_files(glob.glob("train-*"), shuffle=True, block=64)
        model.fit(dataset.shuffle(1024).map(parse).batch(64))
    """
    if isinstance(paths, str | bytes | os.PathLike):
        raise SourceError(f"paths must be a list of paths; received {paths!r}")
    stamps = [Stamp.of(path) for path in paths]
    offsets = np.concatenate(places := _places(stamps))
    file_of = np.repeat(np.arange(len(stamps), dtype=np.int64), list(map(len, places)))
    names = [stamp.path for stamp in stamps]

    def lease_of(index: tf.Tensor) -> tuple[tf.Tensor, ...]:
        name = tf.gather(names, tf.gather(file_of, index))
        return name, tf.gather(offsets, index)

    return LeasedDataset(
        _indices(len(offsets), shuffle, seed, block).map(lease_of),
        _open_records,
        None,
        has_batches=False,
        source=of_records(stamps),
    )


def _places(stamps: Sequence[Stamp]) -> list[np.ndarray]:
    """Returns where the records of each file begin, in bytes; at least one has some."""
    with ThreadPoolExecutor(_THREADS) as threads:
        places = list(threads.map(record_offsets, stamps))
    if not any(map(len, places)):
        raise SourceError(f"no records in {len(stamps)} files: give at least one")
    return places


def _open_records(names: tf.Tensor, offsets: tf.Tensor) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((names, offsets)).map(record_at)


@dataclass(frozen=True)
class _Leaf:
    """An array of a source: in a file, or in memory."""

    file: ArrayFile | None
    rows: Any
    length: int
    name: str

    @classmethod
    def of(cls, source: Any) -> "_Leaf":
        # A copy of a memory map is one by its type, and has no file.
        in_memory = isinstance(source, np.memmap) and source.filename is None
        if isinstance(source, np.memmap | str | os.PathLike) and not in_memory:
            file = array_file(source)
            return cls(file, None, file.shape[0], file.stamp.path)
        rows = np.asarray(source)
        if not rows.shape:
            raise SourceError(
                f"an array of a source has an example per row; received {source!r}"
            )
        return cls(None, _sendable(rows), len(rows), f"an array of {rows.dtype}")


def _check_arrays(source: Any) -> None:
    """Refuses what would be read whole, or without an end, example by example."""
    if isinstance(source, list | tuple | Mapping):
        for each in source.values() if isinstance(source, Mapping) else source:
            _check_arrays(each)
    elif hasattr(source, "__getitem__") and not (
        hasattr(source, "__array__") or isinstance(source, str | bytes | range)
    ):
        raise SourceError(
            "a source has arrays, or the paths of .npy files; received "
            f"{type(source).__qualname__}, whose examples only Python can read, which "
            "workers do not run. Write them to .npy or TFRecord files once, or have the "
            "chief read them, with a keras.utils.PyDataset: see docs/data.md"
        )


def _sendable(rows: np.ndarray) -> Any:
    size = rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    if rows.dtype.kind in "iufcb" and size > _MAX_SENT_BYTES:
        raise SourceError(
            f"an array in memory has {size:,} bytes per example, which would travel with "
            f"each lease; up to {_MAX_SENT_BYTES:,} may. Write it with numpy.save to a "
            "path that all tasks see, and give the path"
        )
    return tf.convert_to_tensor(rows)


def _common_length(leaves: Sequence[_Leaf]) -> int:
    lengths = {leaf.length for leaf in leaves}
    if len(lengths) != 1 or not min(lengths):
        found = ", ".join(f"{leaf.name}: {leaf.length:,}" for leaf in leaves)
        raise SourceError(
            "the arrays of a source have equally many examples, at least one; received "
            f"{found or 'no array'}"
        )
    return lengths.pop()


def _indices(
    examples: int, shuffle: bool, seed: int | None, block: int
) -> tf.data.Dataset:
    if not isinstance(block, numbers.Integral) or block < 1:
        raise ValueError(
            f"block must be an integer of at least 1 example; received {block!r}"
        )
    return (
        shuffled(examples, block, seed) if shuffle else tf.data.Dataset.range(examples)
    )


def _gathered(file: ArrayFile, index: tf.Tensor) -> tf.Tensor:
    def rows(index: tf.Tensor) -> tf.Tensor:
        # Equal constants are sent once, and a worker keeps its constants. A file that
        # was written again under the same path must not be equal.
        with tf.name_scope(f"written_{file.stamp.modified}_{file.stamp.size}"):
            return tf.gather(_in_place(file), index)

    # TensorFlow makes constants of arrays below 10 MiB. This has it do so once, and not
    # for each step of each function. It is made anew for each trace: workers do not know
    # what was traced before this process joined them.
    apart = {"_noinline": True}
    return tf.function(rows, autograph=False, experimental_attributes=apart)(index)


def _rows(
    leaves: Sequence[_Leaf], index: tf.Tensor, sent: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns the rows of each array: those that came with the lease, or from a file."""
    rest = iter(sent)
    return [
        next(rest) if leaf.file is None else _gathered(leaf.file, index)
        for leaf in leaves
    ]


def _in_place(file: ArrayFile) -> tf.Tensor:
    """Returns an array without reading it: the operating system does so by the page."""
    elements = tf.raw_ops.ImmutableConst(
        dtype=tf.as_dtype(file.dtype),
        shape=[file.end],
        memory_region_name=file.stamp.path,
    )
    return tf.reshape(elements[file.offset :], file.shape)


def shuffled(examples: int, block: int, seed: int | None) -> tf.data.Dataset:
    """Returns the indices of all examples, in another order in each iteration.

    A permutation is computed, and not kept: it takes no memory for any number of
    examples, and a checkpoint has it by its seed. Each `block` of examples stays
    together, in its order. Indices are int64 scalars. The seed is of all iterations;
    None for one that nobody knows.
    """
    blocks = -(-examples // block)
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
    seeds = seeds.take(2).batch(2, drop_remainder=True)

    def permuted(pair: tf.Tensor) -> tf.data.Dataset:
        def permute(numbers: tf.Tensor) -> tf.Tensor:
            shuffle = tf.random.experimental.index_shuffle
            return shuffle(numbers, pair, tf.constant(blocks - 1, tf.int64))

        chunks = tf.data.Dataset.range(blocks).batch(_AT_ONCE).map(permute)
        return chunks.map(within).unbatch()

    def within(numbers: tf.Tensor) -> tf.Tensor:
        first = numbers[:, tf.newaxis] * block
        indices = tf.reshape(first + tf.range(block, dtype=tf.int64), [-1])
        return tf.boolean_mask(indices, indices < examples)  # The last may be shorter.

    # Keras asks for the number of batches, which these transformations hide.
    known = tf.data.experimental.assert_cardinality(examples)
    return seeds.flat_map(permuted).apply(known)
