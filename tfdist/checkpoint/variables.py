"""The variables of a cluster on disk: each ps writes and reads its own.

Cost: every byte of a variable once from its ps's memory to its ps's disk; nothing of it
crosses the network unless the directory does. Workers go on meanwhile: each variable is
as it was at one moment, and different variables are a few steps apart.
"""

import errno
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.variables.saveable import saved_by_a_function

_FILE = "variables"
_MARGIN = 1 << 20  # bytes, for all that is not a variable


class VariableWriter:
    """Writes groups of variables, again and again, by a function traced once.

    Args:
        **groups: Lists of Keras variables.
    """

    def __init__(self, **groups: Sequence[Any]) -> None:
        checkpoint = tf.train.Checkpoint(**_lists(groups))
        self._bytes = _MARGIN + sum(
            math.prod(each.shape) * tf.as_dtype(each.dtype).size
            for group in groups.values()
            for each in group
        )

        def write(prefix: tf.Tensor) -> tf.Tensor:
            return checkpoint.write(prefix)

        with saved_by_a_function():
            self._write = tf.function(write, autograph=False).get_concrete_function(
                tf.TensorSpec([], tf.string)
            )

    def __call__(self, path: Path) -> None:
        """Writes the variables to a directory, which every ps can write to.

        Raises:
            tf.errors.OpError: If a ps cannot write.
            OSError: If the file system is too full.
        """
        # TensorFlow cancels steps that run meanwhile when one ps fails to write.
        if shutil.disk_usage(path).free < self._bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self._write(tf.constant(str(path / _FILE)))


def read(path: Path, **groups: Sequence[Any]) -> None:
    """Reads groups of variables, as many of them and in the same order as written.

    They may live on other ps now, and in other shards.

    Raises:
        tf.errors.OpError: If a ps cannot read, or what it reads is corrupt.
    """
    tf.train.Checkpoint(**_lists(groups)).read(str(path / _FILE)).expect_partial()


def describe(variables: Sequence[Any]) -> list[list[Any]]:
    """The path, shape and dtype of each variable, as JSON can hold them."""
    return [[each.path, list(each.shape), str(each.dtype)] for each in variables]


def difference(written: Sequence[Any], present: Sequence[Any]) -> str | None:
    """Says where described variables differ in number, shape or dtype.

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
