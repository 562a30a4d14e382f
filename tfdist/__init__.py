"""Distribution strategies for TensorFlow and Keras 3.

Importing this package changes nothing in TensorFlow or Keras, and imports neither: each
public name imports its module when it is first used. `__init__.pyi` lists the names.
"""

import ast
import importlib
import sys
from pathlib import Path
from typing import Any


def _read_stub() -> tuple[set[str], dict[str, str]]:
    """Returns the packages and the modules of the names that `__init__.pyi` imports."""
    packages, modules = set(), {}
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
    for node in stub.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [alias.name for alias in node.names]
            if node.module == __name__:
                packages.update(names)
            else:
                modules.update(dict.fromkeys(names, node.module))
    return packages, modules


_PACKAGES, _MODULES = _read_stub()

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"tfdist.{name}")
    if name not in _MODULES:
        raise AttributeError(_no_attribute(name), name=name)
    try:
        module = importlib.import_module(_MODULES[name])
    except Exception:
        # With an older TensorFlow, its version is the reason: this says which is needed.
        importlib.import_module("tfdist._requires")
        raise
    value = getattr(module, name)
    globals()[name] = value  # Python finds it without this function from now on.
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _no_attribute(name: str) -> str:
    message = f"module 'tfdist' has no attribute {name!r}"
    if name.startswith("_"):
        return message  # Python itself asks for some of these, and shows no message.
    if hasattr(getattr(sys.modules.get("tensorflow"), "distribute", None), name):
        return f"{message}, which is TensorFlow's own: tf.distribute.{name}"
    from difflib import get_close_matches

    near = get_close_matches(name, __all__)
    return f"{message}. Did you mean: {', '.join(near)}?" if near else message
