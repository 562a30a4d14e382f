"""Public names of a package, each of which imports its module when it is first used.

The stub `__init__.pyi` beside the package's `__init__.py` is the only list of them. Type
checkers and editors read it as any stub.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


class PublicNames:
    """The names that a package's stub imports.

    Attributes:
        packages: The full name of each package, by its public name.
        modules: The module that defines each other name.
    """

    def __init__(self, init: str) -> None:
        self.packages: dict[str, str] = {}
        self.modules: dict[str, str] = {}
        stub = ast.parse(Path(init).with_suffix(".pyi").read_text())
        for node in stub.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self._add(node.module, alias.name)

    def _add(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if _ROOT.joinpath(*full.split(".")).is_dir():
            self.packages[name] = full
        else:
            self.modules[name] = module

    def __contains__(self, name: str) -> bool:
        return name in self.packages or name in self.modules

    def import_value(self, name: str) -> Any:
        """Imports what a name stands for.

        Raises:
            ImportError: If TensorFlow is too old.
        """
        if name in self.packages:
            return importlib.import_module(self.packages[name])
        try:
            module = importlib.import_module(self.modules[name])
        except Exception:
            # With an older TensorFlow, its version is the reason.
            importlib.import_module("tfdist._support.requires")
            raise
        return getattr(module, name)
