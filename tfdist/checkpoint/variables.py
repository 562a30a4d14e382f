"""Variables of a cluster on disk: each ps writes and reads its own.

All of them are read before any is written, so that updates may continue meanwhile. Cost:
every byte of a variable moves once, from the memory of its ps to the disk of its ps; none
crosses the network unless the directory is on a network file system. A variable that is
updated before it is written takes its memory twice until then.
"""

import errno
import math
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.variables.reserved_rows import growth_of
from tfdist.variables.saveable import saved_by_a_function

_FILE = "variables"
_MARGIN = 1 << 20  # bytes, for everything that is not a variable
_BYTES_OF_ID = 28  # of a table that grows: an id, when it was seen, and how often


class VariableWriter:
    """Writes groups of Keras variables repeatedly, by a function traced once.

    A call sets the event `has_read` once all variables are read.
    """

    def __init__(self, **groups: Sequence[Any]) -> None:
        has_read = self.has_read = threading.Event()
        checkpoint = tf.train.Checkpoint(**_lists(groups))
        self._variables = [each for group in groups.values() for each in group]

        def write(prefix: tf.Tensor) -> tf.Tensor:
            written = checkpoint.write(prefix)
            # A tensor that has been read stays as it is: an update of its variable
            # writes elsewhere. `tf.group` sends one signal per ps.
            with tf.control_dependencies([tf.group(*_reads(written.graph))]):
                tf.numpy_function(has_read.set, [], [])
            return written

        with saved_by_a_function():
            self._write = tf.function(write, autograph=False).get_concrete_function(
                tf.TensorSpec([], tf.string)
            )

    def __call__(self, path: Path) -> None:
        """Writes the variables to a directory that every ps can write to.

        Raises tf.errors.OpError if a ps cannot, and OSError if there is too little
        space.
        """
        # Checked first, because a ps that fails to write makes TensorFlow cancel the
        # steps that are running.
        most = _MARGIN + sum(map(_bytes_of, self._variables))
        if shutil.disk_usage(path).free < most:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self._write(tf.constant(str(path / _FILE)))


def _reads(graph: tf.Graph) -> list[tf.Operation]:
    """Returns the operations that read a variable."""
    return [
        each
        for each in graph.get_operations()
        if each.outputs and any(arg.dtype == tf.resource for arg in each.inputs)
    ]


def read(path: Path, **groups: Sequence[Any]) -> None:
    """Reads groups of variables in the number and order of their writing.

    They may live on other ps than when they were written, and have other shards. Raises
    tf.errors.OpError if a ps cannot read them, or the data is corrupt.
    """
    tf.train.Checkpoint(**_lists(groups)).read(str(path / _FILE)).expect_partial()


def describe(variables: Sequence[Any]) -> list[list[Any]]:
    """Returns the path, shape and dtype of each variable in a form for JSON.

    A table that grows is restored into one with room for another number of rows: of its
    shape, that number is None.
    """
    return [[each.path, _shape_of(each), str(each.dtype)] for each in variables]


def _shape_of(variable: Any) -> list[int | None]:
    shape = list(variable.shape)
    return shape if growth_of(variable) is None else [None, *shape[1:]]


def _bytes_of(variable: Any) -> int:
    """Returns how many bytes of a file a variable takes now, at most."""
    size = tf.as_dtype(variable.dtype).size
    if growth_of(variable) is None:
        return math.prod(variable.shape) * size
    # Reserved rows are not written, and could be more than the disk has room for.
    rows = sum(shard.rows_in_use() for shard in _tf.value_of(variable).shards)
    return int(rows) * (math.prod(variable.shape[1:]) * size + _BYTES_OF_ID)


def difference(written: Sequence[Any], present: Sequence[Any]) -> str | None:
    """Returns the first difference in number, shape or dtype, in words.

    Paths are not compared.

    >>> difference([["a", [2], "float32"]], [["b", [2], "float32"]])
    >>> difference([["a", [2], "float32"]], [["b", [3], "float32"]])
    'a of shape [2] and dtype float32 in place of b of shape [3] and dtype float32'
    >>> difference([], [["b", [3], "float32"]])
    'nothing in place of b of shape [3] and dtype float32'
    """
    for i in range(max(len(written), len(present))):
        sides = [side[i] if i < len(side) else None for side in (written, present)]
        if sides[0] is None or sides[1] is None or sides[0][1:] != sides[1][1:]:
            return " in place of ".join(map(_in_words, sides))
    return None


def _in_words(variable: Any) -> str:
    if variable is None:
        return "nothing"
    path, shape, dtype = variable
    return f"{path} of shape {shape} and dtype {dtype}"


def _lists(groups: dict[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: list(variables) for name, variables in groups.items()}
