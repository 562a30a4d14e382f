"""Modules that the fork server imports, and their effects on its process."""

import gc
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from tf_config import contract

# Nothing here may use TensorFlow's runtime: its threads would be missing after a fork.
_MODULES = (
    "tensorflow",
    "keras",
    contract.SERVER_MODULE,
    "tfdist.parameter_server.strategy",
)


class Imports:
    """The modules that forked processes share.

    `path` is `sys.path` before the imports, which have set the variables
    `set_variables`.
    """

    def __init__(self) -> None:
        self.path = tuple(sys.path)
        before = dict(os.environ)
        builtin = set(sys.modules)
        gc.disable()  # Nothing that an import makes is garbage.
        for name in _MODULES:
            importlib.import_module(name)
        gc.enable()
        # A collection would touch, and so copy, the pages that all processes share.
        gc.collect()
        gc.freeze()
        self.set_variables = {
            name: value
            for name, value in os.environ.items()
            if before.get(name) != value
        }
        self._modules = {
            name: module
            for name, module in sys.modules.items()
            if "." not in name and name not in builtin and _origin(module)
        }

    def hidden_by(self, directory: str | None) -> str:
        """Returns an imported module that a program would import from elsewhere, or ''.

        The directory of the program comes first in its `sys.path`.
        """
        first, *rest = self.path
        path = [*([directory] if directory else []), *rest]
        for name, module in self._modules.items():
            origin = _origin(module)
            is_local = os.path.dirname(origin.removesuffix("/__init__.py")) == first
            if is_local and directory != first and _find(name, path) != origin:
                return name
            spec = importlib.machinery.PathFinder.find_spec(name, path[:1])
            if directory and spec and spec.origin and spec.origin != origin:
                return name
        return ""

    def elsewhere(self, path: Sequence[str]) -> set[str]:
        """Returns the imported modules that another `sys.path` has elsewhere, or not."""
        return {
            name
            for name, module in self._modules.items()
            if _find(name, path) != _origin(module)
        }


def _origin(module: ModuleType) -> str:
    spec = getattr(module, "__spec__", None)
    return (spec and spec.has_location and spec.origin) or ""


def _find(name: str, path: Sequence[str]) -> str | None:
    """Returns the file that `import` would run if `sys.path` were `path`."""
    kept, sys.path[:] = sys.path[:], path
    try:
        specs = (finder.find_spec(name, None) for finder in sys.meta_path)
        return next((spec.origin for spec in specs if spec), None)
    finally:
        sys.path[:] = kept
