"""Who wrote the code that created an operation of a step: Keras, or anybody else."""

import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

# Functions that create single operations for their caller.
_PRIMITIVES = (
    "/tensorflow/python/",
    "/keras/src/ops/",
    "/keras/src/random/",
    "/keras/src/backend/",
    "/keras/src/utils/traceback_utils",
    "/tfdist/keras/",
    "/tfdist/synchronous/",
    "/tfdist/parameter_server/",
)
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}/"
_TFDIST = Path(__file__).parents[2]
_OWN = tuple(
    f"{each}/"
    for each in (Path(keras.__file__).parent, Path(tf.__file__).parent, _TFDIST)
)


def is_of_keras(op: tf.Operation) -> bool:
    """Returns whether Keras's, TensorFlow's or tfdist's own layers created an operation.

    What those do with a batch is documented. All other code is read, wherever it is
    installed: a package's loss is as unknown as one in the script.
    """
    for frame in reversed(op.traceback):
        path = frame.filename
        if not (any(part in path for part in _PRIMITIVES) or _is_standard(path)):
            return path.startswith(_OWN)
    return True


def line_of(op: tf.Operation) -> str:
    """Returns the line that created an operation: ", made in ...", or nothing.

    It is that of the script or of a package, whoever called it.
    """
    frame: Any = next(
        (each for each in reversed(op.traceback) if _is_others(each)), None
    )
    return f", made in {frame.filename}, line {frame.lineno}" if frame else ""


def _is_others(frame: Any) -> bool:
    path = frame.filename
    return not (path.startswith(_OWN) or _is_standard(path))


def _is_standard(path: str) -> bool:
    return path.startswith((_STANDARD_LIBRARY, "<")) and "-packages/" not in path
