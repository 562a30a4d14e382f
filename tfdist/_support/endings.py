"""Ends of calls as their user sees them: short tracebacks, and an interrupt as a line."""

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tfdist._support.authors import filtered, without_libraries, without_tfdist

_LINE = "_tfdist_line"


def ending_in_the_program(
    method: Callable[..., Any],
    applies: Callable[[Any, BaseException], bool],
    folds: Callable[[Any], bool] = lambda self: False,
) -> Callable[..., Any]:
    """Returns a method some of whose errors have short tracebacks.

    Args:
        method: The method.
        applies: Chooses the errors whose messages suffice, by the instance and the error:
            their tracebacks have the program's frames alone.
        folds: Chooses the instances for which tracebacks of all other errors lack the
            frames of tfdist, and an interrupt that nobody catches is shown as a line.
    """

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            stack = error.__traceback__
            is_interrupt = isinstance(error, KeyboardInterrupt) and folds(self)
            is_short = is_interrupt or applies(self, error)
            if not (is_short or folds(self)):
                raise
            _shorten_reports()
            if is_interrupt:
                # Its arguments say what was saved.
                setattr(error, _LINE, _line(error, method.__name__))
            if is_short:
                raise error.with_traceback(without_libraries(stack)) from None
            error.__traceback__ = without_tfdist(stack)
            # Not `from None`, since a cause may be the program's.
            raise error

    return called


def _line(error: BaseException, name: str) -> str:
    name = name.replace("__init__", "the constructor of the strategy")
    return ": ".join([f"interrupted in {name}", *map(str, error.args)])


def _shorten_reports() -> None:
    """Shows errors that nobody catches without the frame of `called`.

    An interrupt with a line is shown as that line.
    """
    shown = sys.excepthook
    if getattr(shown, "__name__", "") == "_hook":
        return

    def _hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if line := getattr(error, _LINE, ""):
            print(line, file=sys.stderr)
        else:
            trace = filtered(trace, lambda path: path != __file__)
            shown(kind, error.with_traceback(trace), trace)

    sys.excepthook = _hook
