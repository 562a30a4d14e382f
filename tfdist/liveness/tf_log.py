"""Filters for TensorFlow's log: no more than a line per failed step, each record once."""

import logging

import tensorflow as tf

from tfdist import _tf
from tfdist.liveness.step_error import summary, without_details

_log = logging.getLogger("tfdist")

# What the coordinator logs of an error that it then raises in the program, or of steps that
# end because of that. Each step that is under way may have one.
_RAISED_TOO = (
    "encountered the following error when processing closure",
    "Start cancelling closures due to error",
    "failed with CancelledError",
)


class CoordinatorLog(logging.Filter):
    """Shortens what TensorFlow's coordinator logs about a failed step to one line."""

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
