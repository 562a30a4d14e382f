"""The model that a command is about: a function in the user's script, by its name."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from absl import flags


def load_function(name: str, arguments: Sequence[str]) -> Callable[[], Any]:
    """Imports a script, and returns one of its functions.

    Args:
        name: `MODULE:FUNCTION` or `SCRIPT.py:FUNCTION`.
        arguments: What the script finds in `sys.argv`.

    Raises:
        ValueError: If there is no such script or function.
    """
    where, _, function = name.rpartition(":")
    if not where or not function.isidentifier():
        raise ValueError(
            f"name a function as MODULE:FUNCTION or SCRIPT.py:FUNCTION; received "
            f"{name!r}"
        )
    sys.argv = [where, *arguments]
    with _flags_of_the_script_parsed():
        module = _script(where) if where.endswith(".py") else _module(where)
    try:
        build_model: Callable[[], Any] = getattr(module, function)
    except AttributeError:
        raise ValueError(f"{where} has no function {function!r}") from None
    if not callable(build_model):
        raise ValueError(f"{name} is not a function; it is {build_model!r}")
    return build_model


@contextmanager
def _flags_of_the_script_parsed() -> Iterator[None]:
    """Parses the absl flags that the script defines, and rejects unknown ones.

    A script that defines no absl flags may parse `sys.argv` differently, for example
    with argparse, so then unknown flags are ignored.
    """
    # TensorFlow defines flags too. Imported first, they do not count as the script's.
    import tensorflow as tf  # noqa: F401

    before = {*flags.FLAGS}
    yield
    if not flags.FLAGS.is_parsed():
        has_its_own = bool({*flags.FLAGS} - before)
        flags.FLAGS(sys.argv, known_only=not has_its_own)


def _script(path: str) -> Any:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    # As Python does for a script, so that it can import modules beside it.
    sys.path.insert(0, str(Path(path).absolute().parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before the script runs, since `dataclasses`, for one, looks its module up there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An import that fails inside the user's module is an error of theirs, and keeps
        # its traceback.
        if error.name is not None and not name.startswith(error.name):
            raise
        raise ValueError(f"there is no module {name}") from error
