"""Distribution strategies for TensorFlow and Keras 3.

Importing this package changes nothing in TensorFlow or Keras, and imports neither: each
public name imports its module when it is first used. `__init__.pyi` lists the names. Any
other name is that of `tf.distribute`, so that `tfdist` can stand wherever that stood.
"""

import configparser
import importlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

from tfdist._support.names import PublicNames


def _version() -> str:
    try:
        return importlib.metadata.version(__name__)
    except importlib.metadata.PackageNotFoundError:
        # In a checkout that is not installed.
        config = configparser.ConfigParser()
        config.read(Path(__file__).parents[1] / "setup.cfg")
        return config["metadata"]["version"]


def _otherwise(name: str) -> Any:
    """Returns `__version__`, or the value that `tf.distribute` has under a name.

    Raises:
        AttributeError: If it has none, or one that has strategies which tfdist replaces.
    """
    if name == "__version__":
        return _version()
    message = f"module 'tfdist' has no attribute {name!r}"
    # Python itself asks for some of these, and for a module before it imports it.
    if not (name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}")):
        distribute = importlib.import_module("tensorflow").distribute
        if name == "experimental":
            message += ", which is TensorFlow's own: tf.distribute.experimental"
        elif hasattr(distribute, name):
            return getattr(distribute, name)
        elif package := _package_of(name):
            message += f": it is tfdist.{package}.{name}"
        else:
            from difflib import get_close_matches

            near = get_close_matches(name, _MODULES, cutoff=0.55)
            message += f". Did you mean: {', '.join(near)}?" if near else ""
    raise AttributeError(message, name=name)


def _package_of(name: str) -> str | None:
    """Returns the package of tfdist that has a public name."""
    for package in _NAMES.packages:
        module = importlib.import_module(_NAMES.packages[package])
        if name in getattr(module, "__all__", ()):
            return package
    return None


_NAMES = PublicNames(__file__)
_MODULES = _NAMES.modules

__all__, __getattr__, __dir__ = _NAMES.exported(globals(), _otherwise)
