"""Errors about a program, with the lines of the program alone.

Where tfdist refuses a model, or a step fails on a worker, the sentence says why and names
the line, as TensorFlow's does where it traces a function of the program. The calls within
tfdist, Keras and TensorFlow that led there say nothing more.
"""

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tfdist._authors import Author, author

_CONVERTED = "__autograph_generated_file"  # A function of the program, made anew.


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
