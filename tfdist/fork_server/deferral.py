"""Defers modules of Keras that few programs need, with the packages that they import.

Keras imports scikit-learn for its wrappers, and Matplotlib for its plots, if they are
installed: a third of the time. A deferred module is there, and is executed when a program
first looks for a name in it. The packages themselves are not: a program imports its own.
"""

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_DEFERRED = (".wrappers", ".visualization")
_lock = threading.RLock()


class _Deferred(ModuleType):
    """A module that is executed when a name in it is first looked up.

    `importlib.util.LazyLoader` would execute it for `__file__` too, which AutoGraph looks
    up in every module.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        _execute(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("__"):
            _execute(self)  # Or else it would undo this later.
        ModuleType.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        _execute(self)
        return dir(self)


class _DeferringLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leaves it to `_execute`."""


class _Finder:
    """Finds the deferred modules."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> ModuleSpec | None:
        """Returns the specification of a deferred module."""
        # Keras has a module several times: in its source, public, and for `tf.keras`.
        is_one = name.startswith("keras.") and name.endswith(_DEFERRED)
        if not is_one or name in self._seen:
            return None
        self._seen.add(name)  # Or else it would find itself.
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


@contextlib.contextmanager
def deferring() -> Iterator[None]:
    """Defers the imports within its block."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _execute(module: ModuleType) -> None:
    with _lock:
        spec = module.__spec__
        if spec is None or not isinstance(spec.loader, _DeferringLoader):
            return  # Another thread has done it.
        spec.loader = module.__loader__ = spec.loader.loader
        module.__class__ = ModuleType
        spec.loader.exec_module(module)
