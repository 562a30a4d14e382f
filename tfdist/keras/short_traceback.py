"""Errors about a program, with the lines of the program alone.

Where tfdist refuses a model, or a step fails on a worker, the sentence says why and names
the line. The calls within tfdist, Keras and TensorFlow that led there say nothing more.
"""

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import keras
import tensorflow as tf

from tfdist._authors import Author, author


def ending_in_the_program(
    method: Callable[..., Any], applies: Callable[[Any], bool]
) -> Callable[..., Any]:
    """Returns a method whose errors of this kind have a traceback without libraries.

    As in Keras, `keras.config.disable_traceback_filtering()` keeps it whole.

    Args:
        method: The method.
        applies: Whether that is to be so for an instance.
    """

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            is_short = keras.config.is_traceback_filtering_enabled() and applies(self)
            if not is_short or not _is_explained(error):
                raise
            raise error.with_traceback(_of_the_program(error.__traceback__)) from None

    return called


def _is_explained(error: Exception) -> bool:
    is_ours = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    return is_ours or isinstance(error, tf.errors.OpError)


def _of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    rest = _of_the_program(traceback.tb_next)
    frame = traceback.tb_frame
    if author(frame.f_code.co_filename) is not Author.PROGRAM:
        return rest
    return TracebackType(rest, frame, traceback.tb_lasti, traceback.tb_lineno)
