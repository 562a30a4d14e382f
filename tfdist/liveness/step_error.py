"""Shorten TensorFlow's message of a failed step to a few lines.

TensorFlow prints the stack of every operation that the failed one was traced through,
twice. What a user needs is at the end: what went wrong, and which line of the program
created the operation.
"""

import re
from pathlib import Path

import tensorflow as tf

# `parameter_server.strategy` imports both from here.

_FRAME = re.compile(r'^  File "(?P<path>[^"]+)", line (?P<line>\d+), in .*$', re.M)
_WORKER = re.compile(r"/job:worker(?:/replica:\d+)?/task:(\d+)")
_AFTER_THE_REASON = re.compile(
    r"\n\t \[\[|\nAdditional GRPC error|\n:UNKNOWN:| \[Op:|\n\nOriginal stack trace"
)
_NO_FRAMES = "<stack traces unavailable>"
# Several operations failed: the first that was not cancelled is the cause.
_SEVERAL = re.compile(
    r"^\d+ root error\(s\) found\..*?\(\d+\) (?!CANCELLED)[A-Z_]+:\s*", re.S
)
_FUNCTIONS = re.compile(r"(\{\{function_node [^}]*\}\}\s*)+")
# Frames of these are not the user's code.
_LIBRARIES = ("/site-packages/", "/lib/python", str(Path(__file__).parent.parent))


def shortened(error: tf.errors.OpError) -> tf.errors.OpError:
    """Returns an error of the same type with a short message."""
    return type(error)(error.node_def, error.op, summary(str(error.message)))


def summary(text: str) -> str:
    """Summarizes TensorFlow's message of a failed step in a few lines.

    Args:
        text: The message. A message of unknown form is returned unchanged.
    """
    frames = list(_FRAME.finditer(text))
    why = reason(text)
    if why == text:
        return text
    worker = _WORKER.search(text)
    ours = [each for each in frames if not _is_of_a_library(each["path"])]
    return "".join(
        (
            "a step failed",
            f" on worker {worker[1]}" if worker else "",
            f": {why}",
            f"\n  made in {ours[-1]['path']}, line {ours[-1]['line']}" if ours else "",
        )
    )


def reason(text: str) -> str:
    """Returns what went wrong, without where.

    Args:
        text: TensorFlow's message. A message of unknown form is returned unchanged.
    """
    frames = list(_FRAME.finditer(text))
    ends = [frames[-1].end()] if frames else []
    if _NO_FRAMES in text:
        ends.append(text.rindex(_NO_FRAMES) + len(_NO_FRAMES))
    if text.startswith("Graph execution error") and ends:
        told = text[max(ends) :].strip()
    elif _SEVERAL.match(text) or _FUNCTIONS.match(text):
        told = text  # There is no stack to skip.
    else:
        return text
    after_the_stack = _FUNCTIONS.sub("", _SEVERAL.sub("", told))
    return _AFTER_THE_REASON.split(after_the_stack)[0].strip() or text


def _is_of_a_library(path: str) -> bool:
    return any(part in path for part in _LIBRARIES)


def user_line(op: tf.Operation) -> str:
    """Returns the line of the program that created an operation: ", made in ..."."""
    frames = [frame for frame in op.traceback if not _is_of_a_library(frame.filename)]
    return (
        f", made in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    )


def is_by_user(op: tf.Operation) -> bool:
    """Whether the program itself created an operation, and not a layer of a library."""
    for frame in reversed(op.traceback):
        if not any(part in frame.filename for part in _PRIMITIVES):
            return not _is_of_a_library(frame.filename)
    return False


# Functions that create single operations for their caller.
_PRIMITIVES = (
    "/tensorflow/python/",
    "/keras/src/ops/",
    "/keras/src/backend/",
    "/keras/src/utils/traceback_utils",
    "/tfdist/keras/",
    "/tfdist/synchronous/",
    "/tfdist/parameter_server/",
)
