"""What TensorFlow says of a step that failed on a worker, in a few lines.

It prints the stack of every operation that the failed one was traced through, twice,
and its coordinator logs all of it again for each worker. What a user needs is at the
end: what went wrong, and in which line of the program the operation was made.
"""

import logging
import re
from pathlib import Path

import tensorflow as tf

_FRAME = re.compile(r'^  File "(?P<path>[^"]+)", line (?P<line>\d+), in .*$', re.M)
_WORKER = re.compile(r"/job:worker(?:/replica:\d+)?/task:(\d+)")
_AFTER_THE_REASON = re.compile(
    r"\n\t \[\[|\nAdditional GRPC error|\n:UNKNOWN:| \[Op:|\n\nOriginal stack trace"
)
_NO_FRAMES = "<stack traces unavailable>"
# Where several operations failed, one reason is enough.
_SEVERAL = re.compile(
    r"^\d+ root error\(s\) found\..*?\(\d+\) (?!CANCELLED)[A-Z_]+:\s*", re.S
)
_FUNCTIONS = re.compile(r"(\{\{function_node [^}]*\}\}\s*)+")
# Code that users do not write.
_LIBRARIES = ("/site-packages/", "/lib/python", str(Path(__file__).parent.parent))


def shortened(error: tf.errors.OpError) -> tf.errors.OpError:
    """Returns the error, of its type, with what there is to know in its message."""
    return type(error)(error.node_def, error.op, summary(str(error.message)))


def summary(text: str) -> str:
    """Says in a few lines what TensorFlow's message of a failed step says.

    Args:
        text: The message, of any form; one that is not understood is returned as it
            is.
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
    """Says what went wrong, without where.

    Args:
        text: TensorFlow's message; one that is not understood is returned as it is.
    """
    frames = list(_FRAME.finditer(text))
    ends = [frames[-1].end()] if frames else []
    if _NO_FRAMES in text:
        ends.append(text.rindex(_NO_FRAMES) + len(_NO_FRAMES))
    if text.startswith("Graph execution error") and ends:
        told = text[max(ends) :].strip()
    elif _SEVERAL.match(text) or _FUNCTIONS.match(text):
        told = text  # TensorFlow knows no stack.
    else:
        return text
    after_the_stack = _FUNCTIONS.sub("", _SEVERAL.sub("", told))
    return _AFTER_THE_REASON.split(after_the_stack)[0].strip() or text


def _is_of_a_library(path: str) -> bool:
    return any(part in path for part in _LIBRARIES)


class CoordinatorLog(logging.Filter):
    """Keeps one line of what TensorFlow's coordinator logs of a failed step."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass, and shortens those of the coordinator."""
        if record.module == "cluster_coordinator":
            before, found, after = record.getMessage().partition(
                "Graph execution error"
            )
            if found:
                record.msg, record.args = before + summary(found + after), ()
        return True


def shorten_the_coordinators_log() -> None:
    """Makes TensorFlow's logger keep one line of a failed step; twice does no more."""
    logger = tf.get_logger()
    if not any(isinstance(each, CoordinatorLog) for each in logger.filters):
        logger.addFilter(CoordinatorLog())


class OfTensorFlowAlone(logging.Filter):
    """Drops records that a handler of the root logger writes to the same stream.

    TensorFlow's logger has a handler of its own where the root logger had none when
    TensorFlow was imported. Its coordinator then logs by absl, which gives the root
    logger one too, and all that TensorFlow says would be printed twice.

    Args:
        handler: TensorFlow's own.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._stream = getattr(handler, "stream", None)

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets a record pass that is printed nowhere else."""
        return self._stream is None or not any(
            getattr(each, "stream", None) is self._stream
            and record.levelno >= each.level
            for each in logging.getLogger().handlers
        )


def print_records_once() -> None:
    """Makes TensorFlow's logger print each record once; twice does no more."""
    for handler in tf.get_logger().handlers:
        if not any(isinstance(each, OfTensorFlowAlone) for each in handler.filters):
            handler.addFilter(OfTensorFlowAlone(handler))


def user_line(op: tf.Operation) -> str:
    """Says in which line of the program an operation was made: ", made in ..."."""
    frames = [frame for frame in op.traceback if not _is_of_a_library(frame.filename)]
    return (
        f", made in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    )


def is_by_user(op: tf.Operation) -> bool:
    """Whether the program called for an operation itself, and not a layer of a library."""
    for frame in reversed(op.traceback):
        if not any(part in frame.filename for part in _PRIMITIVES):
            return not _is_of_a_library(frame.filename)
    return False


# What makes single operations, for whoever calls it.
_PRIMITIVES = (
    "/tensorflow/python/",
    "/keras/src/ops/",
    "/keras/src/backend/",
    "/keras/src/utils/traceback_utils",
    "/tfdist/keras/",
    "/tfdist/synchronous/",
    "/tfdist/parameter_server/",
)
