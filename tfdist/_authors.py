"""Authorship of lines of code, by the paths of their files.

So errors about a program name its lines alone. Where tfdist refuses a model, or a step fails
on a worker, the sentence says why and names the line; the calls within tfdist, Keras and
TensorFlow that led there say nothing more.
"""

import enum
import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any


class Author(enum.Enum):
    """Author of a file."""

    PROGRAM = "the program"
    PACKAGE = "an installed package, as unknown as the program"
    KERAS = "Keras, TensorFlow or tfdist, which document what they do with a batch"
    PRIMITIVE = "those too: functions that make single operations for their caller"
    STANDARD = "the standard library"


def _folder(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec
    assert spec.origin
    return f"{Path(spec.origin).parent}/"


_TENSORFLOW, _KERAS, _TFDIST = map(_folder, ("tensorflow", "keras", "tfdist"))
_OURS = (_TENSORFLOW, _KERAS, _TFDIST)
_PRIMITIVES = (
    f"{_TENSORFLOW}python/",
    f"{_TENSORFLOW}dtensor/python/api",
    f"{_KERAS}src/ops/",
    f"{_KERAS}src/random/",
    f"{_KERAS}src/backend/",
    f"{_KERAS}src/utils/traceback_utils",
    f"{_TFDIST}keras/",
    f"{_TFDIST}synchronous/",
    f"{_TFDIST}parameter_server/",
)
_RAGGED = f"{_TENSORFLOW}python/ops/ragged/"
_GRADIENTS = (
    f"{_TENSORFLOW}python/eager/imperative_grad.py",
    f"{_TENSORFLOW}python/ops/gradients_util.py",
)
_MADE_BY_ITSELF = (
    *_GRADIENTS,
    f"{_TENSORFLOW}python/ops/ctc_ops.py",
    _RAGGED,
    f"{_TENSORFLOW}python/ops/sparse_ops.py",
)
# What Python and NumPy generate; `<string>` and `<stdin>` are a program without a file.
_GENERATED = ("<frozen ", "<__array_function__")
_STANDARD = (f"{Path(os.__file__).parent}/", *_GENERATED)
# The second is another interpreter's: a worker may have one.
_INSTALLED = ("-packages/", "/lib/python")
_CONVERTED = "__autograph_generated_file"  # A function of the program, made anew.


def author(path: str) -> Author:
    """Returns who wrote a file, by its path in a frame or a message of TensorFlow's."""
    if path.startswith(_PRIMITIVES):
        return Author.PRIMITIVE
    if path.startswith(_OURS):
        return Author.KERAS
    if path.startswith(_STANDARD) and "-packages/" not in path:
        return Author.STANDARD
    return Author.PACKAGE if any(p in path for p in _INSTALLED) else Author.PROGRAM


def is_of_keras(op: Any) -> bool:
    """Returns True if layers of Keras, TensorFlow or tfdist created an operation.

    All other code is read, wherever it is installed.
    """
    for frame in reversed(op.traceback):
        who = author(frame.filename)
        if who not in (Author.PRIMITIVE, Author.STANDARD):
            return who is Author.KERAS
    return True


def is_apart(op: Any) -> bool:
    """Returns True if an operation treats the examples of a batch as documented.

    Those of Keras's layers do, and those that TensorFlow makes by itself: to differentiate,
    to compute with ragged and sparse values, and for the CTC loss of sequences.
    """
    return _is_made_in(op, _MADE_BY_ITSELF) or is_of_keras(op)


def is_of_tfdist(op: Any) -> bool:
    """Returns True if tfdist made an operation, for whoever called it."""
    return _is_made_in(op, _TFDIST)


def is_of_ragged(op: Any) -> bool:
    """Returns True if TensorFlow made an operation to compute with ragged values."""
    return _is_made_in(op, _RAGGED)


def repeats_ragged_rows(op: Any) -> bool:
    """Returns True if TensorFlow made an operation to repeat values per ragged row.

    It selects by a mask of which each row has its own part.
    """
    return _is_made_in(op, (f"{_RAGGED}ragged_util.py", f"{_RAGGED}segment_id_ops.py"))


def _is_made_in(op: Any, files: str | tuple[str, ...]) -> bool:
    for frame in reversed(op.traceback):
        if frame.filename.startswith(files):
            return True
        if author(frame.filename) not in (Author.PRIMITIVE, Author.STANDARD):
            return False
    return False


def line_of(op: Any, *authors: Author) -> str:
    """Returns the line that created an operation, such as "train.py, line 7", or "".

    It is that of one of these authors, whoever was called from there.
    """
    for frame in reversed(op.traceback):
        if author(frame.filename) in authors:
            return f"{frame.filename}, line {frame.lineno}"
    return ""


def made_in(op: Any, *authors: Author) -> str:
    """Returns ", made in " with the line that created an operation, or ""."""
    line = line_of(op, *authors)
    return line and f", made in {line}"


def ending_in_the_program(
    method: Callable[..., Any], applies: Callable[[Any, Exception], bool]
) -> Callable[..., Any]:
    """Returns a method some of whose errors have a traceback without libraries.

    `applies` says of which, by the instance and the error.
    """

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if not applies(self, error):
                raise
            raise error.with_traceback(_of_the_program(error.__traceback__)) from None

    return called


def _of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    rest = _of_the_program(traceback.tb_next)
    frame = traceback.tb_frame
    path = frame.f_code.co_filename
    if author(path) is not Author.PROGRAM or _CONVERTED in path:
        return rest
    return TracebackType(rest, frame, traceback.tb_lasti, traceback.tb_lineno)
