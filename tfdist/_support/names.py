"""Public names of a package, each of which imports its module when it is first used.

The stub `__init__.pyi` beside the package's `__init__.py` is the only list of them. Type
checkers and editors read it as any stub.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


class PublicNames:
    """The names that a package's stub imports.

    Args:
        init: The path of the package's `__init__.py`.

    Attributes:
        packages: The full name of each package, by its public name.
        modules: The module that defines each other name.
    """

    def __init__(self, init: str) -> None:
        self.packages: dict[str, str] = {}
        self.modules: dict[str, str] = {}
        for node in ast.parse(Path(init).with_suffix(".pyi").read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self._add(node.module, alias.name)

    def _add(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        path = _ROOT.joinpath(*full.split("."))
        if path.is_dir() or path.with_suffix(".pyi").exists():
            self.packages[name] = full
        else:
            self.modules[name] = module

    def exported(
        self,
        into: dict[str, Any],
        otherwise: Callable[[str], Any] | None = None,
    ) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
        """Returns `__all__`, `__getattr__` and `__dir__` of the package.

        Args:
            into: The `globals()` of the package, which keep each value.
            otherwise: Returns the values of other names; without it, there are none.
        """
        names = sorted(self.modules)

        def get(name: str) -> Any:
            if name in self.packages:
                return importlib.import_module(self.packages[name])
            if name in self.modules:
                # Python finds it without this function from now on.
                into[name] = self._import(name)
                return into[name]
            if otherwise:
                return otherwise(name)
            raise AttributeError(
                f"module {into['__name__']!r} has no attribute {name!r}", name=name
            )

        def listed() -> list[str]:
            return sorted({*into, *names, *self.packages})

        return names, get, listed

    def _import(self, name: str) -> Any:
        try:
            module = importlib.import_module(self.modules[name])
        except Exception:
            # With an older TensorFlow, its version is the reason: this says which is needed.
            importlib.import_module("tfdist._support.requires")
            raise
        return getattr(module, name)
