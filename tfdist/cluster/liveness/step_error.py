"""Shortens TensorFlow's messages about a failed step, in errors and in its log.

TensorFlow prints the stack of every operation that the failed one was traced through,
twice. The facts that a user needs are at the end: the error, and the line of the
program that created the operation.
"""

import logging
import re
import weakref
from typing import Any

import tensorflow as tf

from tf_config.contract import IMPORTS
from tfdist import _tf
from tfdist._support.authors import Author, author, line_of

_log = logging.getLogger("tfdist")

_FRAME = re.compile(r'^  File "(?P<path>[^"]+)", line (?P<line>\d+), in .*$', re.M)
_WORKER = re.compile(r"/job:worker(?:/replica:\d+)?/task:(\d+)")
_AFTER_THE_REASON = re.compile(
    r"\n\t \[\[|\nAdditional GRPC error|\n:UNKNOWN:| \[Op:|\n\nOriginal stack trace"
)
_NOT_REGISTERED = re.compile("Op type not registered '([^']+)'")
_COMPILING = re.compile("trying to compile graph|Stack trace for op definition")
_NO_FRAMES = "<stack traces unavailable>"
# Several operations failed: the first that was not cancelled is the cause.
_SEVERAL = re.compile(
    r"^\d+ root error\(s\) found\..*?\(\d+\) (?!CANCELLED)[A-Z_]+:\s*", re.S
)
_SHAPES = re.compile(
    "[Ii]ncompatible|not compatible|broadcastable|[Dd]imension|to reshape|same (size|shape)"
)
# Positions in a pipeline, by names that TensorFlow gives.
_OF_DATA = re.compile(
    r"Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)
_CALL = re.compile(r'\n+(  File "(?P<path>[^"]+)", line \d+, in .*(?:\n    .*)*)')
_FUNCTIONS = re.compile(r"(\{\{function_node [^}]*\}\}\s*)+")
# The last one named is the operation that failed; those before called its function.
_NODE = re.compile(r"\{\{node (?:(?:[^}]*?/)?step_\d+/)?([^}]+)\}\}")
# Log lines of the coordinator about an error that it then raises in the program, or
# about steps that end because of it. Each step in flight may have one.
_RAISED_TOO = (
    "encountered the following error when processing closure",
    "Start cancelling closures due to error",
    "failed with CancelledError",
)
# TensorFlow knows no stack of an operation that was copied from one of these.
_graphs: "weakref.WeakSet[Any]" = weakref.WeakSet()


def remember(graph: tf.Graph) -> None:
    """Makes messages say where the operations of a graph were created.

    Its operations are copied to the functions that workers run, as
    `step_<number>/<name>`. It is not kept alive.
    """
    _graphs.add(graph)


def shortened(error: tf.errors.OpError, of_shapes: str = "") -> tf.errors.OpError:
    """Returns an error of the same type with a short message.

    `of_shapes` is added to one about shapes that do not match.
    """
    message = str(error.message)
    short = _with_remedy(summary(message))
    if of_shapes and of_shapes not in short and is_about_shapes(message):
        short = f"{short}\n  {of_shapes}"
    return saying(error, short)


def _with_remedy(message: str) -> str:
    """Returns a message, or a better one if a server or XLA lacks an operation."""
    if _COMPILING.search(message):
        return f"{message}\n  Or compile the model with jit_compile=False: XLA compiles this step"
    if not (found := _NOT_REGISTERED.search(message)):
        return message
    return (
        f"a ps or a worker does not know the operation {found[1]}, because it has not "
        "imported the library that registers it, as this program has. Start the job with "
        "--import=MODULE, for example --import=tensorflow_text, or a server by hand with "
        f"{IMPORTS}=MODULE in its environment"
    )


def saying(error: tf.errors.OpError, message: str) -> tf.errors.OpError:
    """Returns an error of the same type with another message."""
    return type(error)(error.node_def, error.op, message)


def summary(text: str) -> str:
    """Summarizes TensorFlow's message of a failed step in a few lines.

    One of unknown form is returned unchanged.
    """
    frames = list(_FRAME.finditer(text))
    why = reason(text)
    if why == text:
        return text
    worker = _WORKER.search(text)
    ours = [each for each in frames if author(each["path"]) is Author.PROGRAM]
    made = f"{ours[-1]['path']}, line {ours[-1]['line']}" if ours else _origin(text)
    return "".join(
        (
            "a step failed",
            f" on worker {worker[1]}" if worker else "",
            f": {why}",
            f"\n  made in {made}" if made else "",
        )
    )


def reason(text: str) -> str:
    """Returns the error without its place; text of unknown form unchanged."""
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
    for each in (_SEVERAL, _FUNCTIONS, _OF_DATA):
        told = each.sub("", told)
    return _with_calls_of_the_program(without_details(told)).strip() or text


def _with_calls_of_the_program(text: str) -> str:
    """Leaves the calls of libraries out of the traceback of a Python function."""

    def kept(call: re.Match[str]) -> str:
        return f"\n{call[1]}" if author(call["path"]) is Author.PROGRAM else ""

    return _CALL.sub(kept, text)


def is_about_shapes(text: str) -> bool:
    """Returns True if a message says that the shapes of some tensors do not match."""
    return bool(_SHAPES.search(reason(text)))


def without_details(text: str) -> str:
    """Returns a message without the additions of gRPC, or an operation's name."""
    return _AFTER_THE_REASON.split(text)[0]


def _origin(text: str) -> str:
    """Returns where the operation that failed was created, if a graph has it."""
    names = _NODE.findall(text)
    for name in reversed(names):
        parts = name.split("/")
        for graph in _graphs:
            # A branch's operation is in a graph of its own, named after the branch.
            for end in range(len(parts), 0, -1):
                try:
                    op = graph.get_operation_by_name("/".join(parts[:end]))
                except (KeyError, ValueError):
                    continue
                if line := line_of(op, Author.PROGRAM):
                    return line
    return ""


class CoordinatorLog(logging.Filter):
    """Shortens the log of TensorFlow's coordinator about a failed step to one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shortens the coordinator's records; drops those of errors that it raises.

        It drops those of workers to come, too.
        """
        if record.module != "cluster_coordinator":
            return True
        message = record.getMessage()
        if message.endswith(_tf.NOT_HERE_YET):
            return False
        if any(each in message for each in _RAISED_TOO):
            _log.debug("%s", message)
            return False
        before, found, after = message.partition("Graph execution error")
        short = before + summary(found + after) if found else without_details(message)
        if short != message:
            # Without arguments, or the handler would format the text again.
            record.msg, record.args = short, ()
        return True


def shorten_the_coordinators_log() -> None:
    """Installs `CoordinatorLog` on TensorFlow's logger, once."""
    logger = tf.get_logger()
    if not any(isinstance(each, CoordinatorLog) for each in logger.filters):
        logger.addFilter(CoordinatorLog())


class OfTensorFlowAlone(logging.Filter):
    """Drops records that a handler of the root logger writes to the same stream.

    TensorFlow's logger has its own handler if the root logger had none when TensorFlow
    was imported. The coordinator then logs by absl, which adds a handler to the root
    logger as well, and everything TensorFlow logs would be printed twice.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._stream = getattr(handler, "stream", None)

    def filter(self, record: logging.LogRecord) -> bool:
        """Passes a record unless the root logger prints it to the same stream."""
        return self._stream is None or not any(
            getattr(each, "stream", None) is self._stream
            and record.levelno >= each.level
            for each in logging.getLogger().handlers
        )


def print_records_once() -> None:
    """Installs `OfTensorFlowAlone` on the handlers of TensorFlow's logger, once each."""
    for handler in tf.get_logger().handlers:
        if not any(isinstance(each, OfTensorFlowAlone) for each in handler.filters):
            handler.addFilter(OfTensorFlowAlone(handler))
