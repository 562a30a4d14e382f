"""Places of records in TFRecord files, each a string that serves as a lease.

The chief looks into a file when its turn comes, in each iteration, as a reader of its
records would. The places are kept while the file does not change.
"""

import functools
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.data.errors import SourceError
from tfdist.data.record_index import records_before_a_problem
from tfdist.data.source_files import SourceFiles, Stamp, of_records

TURN_OFF = (
    "options.experimental_distribute.auto_shard_policy = "
    "tf.data.experimental.AutoShardPolicy.OFF has the chief read this dataset"
)

_PROBLEM = re.compile(rf"assertion failed: \[(.*; {re.escape(TURN_OFF)})\]")
_DIGITS = 20  # Digits of an offset in bytes; the path follows.
# A file with many records has its places computed this many at a time.
_AT_ONCE = 1024
_MOST_FILES_KEPT = 4096

_found = functools.lru_cache(_MOST_FILES_KEPT)(records_before_a_problem)


@functools.cache
def places_graph() -> Any:
    """Returns the graph of a dataset that ends with a `flat_map` from files to places.

    It calls Python functions of this process: only the chief can run it.
    """
    dataset = _places()
    return tf.compat.v1.GraphDef.FromString(_tf.dataset_graph(dataset).numpy())


@functools.cache  # TensorFlow forgets a Python function with the dataset that calls it.
def _places() -> tf.data.Dataset:
    def of_files(names: tf.Tensor) -> tf.data.Dataset:
        seen = _called(_look, [names], tf.int64)

        def places(chunk: tf.Tensor) -> tf.Tensor:
            found = _called(_some_places, [names, seen, chunk], tf.string)
            return tf.ensure_shape(found, [None])

        return tf.data.Dataset.range(tf.reshape(seen, [-1])[0]).map(places).unbatch()

    return tf.data.Dataset.from_tensors(tf.constant([""])).flat_map(of_files)


def _called(
    function: Callable[..., np.ndarray], arguments: list[tf.Tensor], dtype: tf.DType
) -> tf.Tensor:
    """Calls a Python function, and fails with the message of its `SourceError`."""

    # TensorFlow would log what it raises with the stack of our calls, and raise that text.
    def call(*values: Any) -> tuple[bytes, np.ndarray]:
        try:
            return b"", function(*values)
        except SourceError as error:
            return f"{error}; {TURN_OFF}".encode(), np.zeros([0], dtype.as_numpy_dtype)

    problem, found = tf.numpy_function(call, arguments, [tf.string, dtype])
    check = tf.raw_ops.Assert(condition=tf.equal(problem, ""), data=[problem])
    with tf.control_dependencies([check]):
        return tf.identity(found)


def source_error(message: str) -> SourceError | None:
    """Returns the part of TensorFlow's error message about places, if it has one.

    >>> source_error(f"assertion failed: [/a is truncated; {TURN_OFF}] [Op: Next]").args[0]
    '/a is truncated; options...
    """
    found = _PROBLEM.search(message)
    return SourceError(found[1]) if found else None


def _look(names: tf.Tensor) -> np.ndarray:
    """Returns the number of chunks, and what each file is like: its size and time.

    The last chunk has no places: there is the end of the files, or what is wrong with them.
    """
    stamps = [_stamp(name) for name in np.ravel(names)]
    records = sum(len(_found(each)[0]) for each in stamps)
    found = [-(-records // _AT_ONCE) + 1]
    for each in stamps:
        found += [each.size, each.modified]
    return np.array(found, np.int64)


def _stamp(name: bytes) -> Stamp:
    stamp = Stamp.of(os.fsdecode(name))
    if not os.path.isfile(stamp.path):
        raise SourceError(
            "files that are read by leases must be regular files; received "
            f"{stamp.path}: copy its records to a file"
        )
    return stamp


def _some_places(names: tf.Tensor, seen: tf.Tensor, chunk: tf.Tensor) -> np.ndarray:
    flat = [os.path.abspath(os.fsdecode(name)) for name in np.ravel(names)]
    then = np.reshape(seen[1:], [-1, 2]).tolist()
    stamps = [Stamp(path, *each) for path, each in zip(flat, then, strict=True)]
    begin = int(chunk) * _AT_ONCE
    found: list[bytes] = []
    for each in stamps:
        each.check()
        offsets, problem = _found(each)
        end = begin + _AT_ONCE - len(found)
        path = os.fsencode(each.path)
        found += [b"%020d" % n + path for n in offsets[max(begin, 0) : max(end, 0)]]
        begin -= len(offsets)
        if problem:
            # The records before the problem are read, as by a reader of the file.
            if not found and begin >= 0:
                raise SourceError(problem)
            break
    return np.array(found, object)


def read(place: tf.Tensor) -> tf.Tensor:
    """Reads the record at a place."""
    offset = tf.strings.to_number(tf.strings.substr(place, 0, _DIGITS), tf.int64)
    name = tf.strings.substr(place, _DIGITS, np.iinfo(np.int32).max)
    return record_at(name, offset)


def record_at(name: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """Reads the record of a file that begins at a byte."""
    records = tf.raw_ops.TFRecordDatasetV2(
        filenames=name[tf.newaxis],
        compression_type="",
        # 0 is no buffer: nothing is read but the record.
        buffer_size=0,
        byte_offsets=offset[tf.newaxis],
    )
    strings = tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))
    return strings.take(1).get_single_element()


def of_places() -> SourceFiles:
    """Returns the files of places, which nobody knows before their turn comes."""
    of_both = of_records([])

    def describe(places: np.ndarray) -> str:
        names = np.array([each[_DIGITS:] for each in places], object)
        offsets = np.array([int(each[:_DIGITS]) for each in places])
        return f"{of_both.describe(names, offsets)}\n  {TURN_OFF}"

    return SourceFiles((), describe)
