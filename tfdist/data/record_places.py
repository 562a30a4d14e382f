"""Where the records of TFRecord files are: a string for each, which is a lease.

The chief looks into a file when its turn comes, in each iteration, as a reader of its
records would. What it finds is kept while the file does not change.
"""

import functools
import os
import stat
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.data.errors import SourceError
from tfdist.data.record_index import records_before_a_problem
from tfdist.data.source_files import SourceFiles, of_records
from tfdist.data.stamp import Stamp

TURN_OFF = (
    "options.experimental_distribute.auto_shard_policy = "
    "tf.data.experimental.AutoShardPolicy.OFF has the chief read this dataset"
)

_DIGITS = 20  # Of a byte in a file; its path follows.
# A file with many records has its places computed so many at a time.
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
        seen = tf.numpy_function(_look, [names], tf.int64)

        def places(chunk: tf.Tensor) -> tf.Tensor:
            found = tf.numpy_function(_some_places, [names, seen, chunk], tf.string)
            return tf.ensure_shape(found, [None])

        return tf.data.Dataset.range(tf.reshape(seen, [-1])[0]).map(places).unbatch()

    return tf.data.Dataset.from_tensors(tf.constant([""])).flat_map(of_files)


def _look(names: Any) -> np.ndarray:
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
    path = os.fsdecode(name)
    try:
        stamp = Stamp.of(path)
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SourceError(
                f"{path} is no regular file, and cannot be read by leases"
            )
    except SourceError as error:
        raise SourceError(f"{error}; {TURN_OFF}") from None
    return stamp


def _some_places(names: Any, seen: Any, chunk: Any) -> np.ndarray:
    flat = [os.path.abspath(os.fsdecode(name)) for name in np.ravel(names)]
    then = np.reshape(seen[1:], [-1, 2]).tolist()
    stamps = [Stamp(path, *each) for path, each in zip(flat, then, strict=True)]
    begin = int(chunk) * _AT_ONCE
    found: list[bytes] = []
    for each in stamps:
        _check(each)
        offsets, problem = _found(each)
        end = begin + _AT_ONCE - len(found)
        path = os.fsencode(each.path)
        found += [b"%020d" % n + path for n in offsets[max(begin, 0) : max(end, 0)]]
        begin -= len(offsets)
        if problem:
            # Whatever comes before it is read, as by a reader of the file.
            if not found and begin >= 0:
                raise SourceError(f"{problem}; {TURN_OFF}")
            break
    return np.array(found, object)


def _check(stamp: Stamp) -> None:
    try:
        stamp.check()
    except SourceError as error:
        raise SourceError(f"{error}; {TURN_OFF}") from None


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
        buffer_size=0,
        byte_offsets=offset[tf.newaxis],
    )
    strings = tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))
    return strings.take(1).get_single_element()


def of_places() -> SourceFiles:
    """Returns the files of places, which nobody knows before their turn comes."""
    of_both = of_records([])

    def describe(places: Any) -> str:
        names = np.array([each[_DIGITS:] for each in places], object)
        offsets = np.array([int(each[:_DIGITS]) for each in places])
        return f"{of_both.describe(names, offsets)}\n  {TURN_OFF}"

    return SourceFiles((), describe)
