"""Bases of the errors that tfdist raises, and advice on the errors of others."""

import logging
from pathlib import Path

from tfdist._support.names import PublicNames

_log = logging.getLogger("tfdist")
_MODULE = "tfdist.errors"
_PUBLIC = PublicNames(str(Path(__file__).parents[1] / "errors.py")).modules


class Error(Exception):
    """The base of all errors that tfdist raises for its users."""

    __module__ = _MODULE

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Python shows, and pickles, an error by the name that a program catches it by.
        if _PUBLIC.get(cls.__name__) == cls.__module__:
            cls.__module__ = _MODULE


class RefusalError(Error, ValueError):
    """A program needs something that its strategy cannot do."""

    # AutoGraph replaces errors by one of its own unless they are made from a message alone.
    __init__ = Exception.__init__


def advise(error: Exception, words: str) -> None:
    """Adds advice to another's error, which keeps its type: a program may wait for it."""
    # Of two calls, one within the other, each advises.
    if words in getattr(error, "__notes__", ()):
        return
    if hasattr(error, "add_note"):
        error.add_note(words)
    else:  # Before Python 3.11.
        _log.error("%s", words)
