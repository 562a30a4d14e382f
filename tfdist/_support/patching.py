"""Replacement of functions of Keras and TensorFlow."""

import functools
from collections.abc import Callable
from typing import Any


def patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces a function of a module or a class by what `make` returns for it."""
    function = getattr(owner, name)
    setattr(owner, name, functools.wraps(function)(make(function)))
