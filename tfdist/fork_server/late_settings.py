"""Notices a program that sets an environment variable before it imports TensorFlow.

    os.environ["KERAS_BACKEND"] = "jax"
    import keras

In a forked process the import has happened, so the variable would do nothing. The process
starts again instead, as a fresh interpreter: `exec` keeps its id, files and parent. The
launcher spawns a task whose source shows that it does this; see
`launch/script_source.py`.
"""

import copy
import importlib.machinery
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NoReturn

from tf_config.contract import ForkRequest, is_import_setting

_IMPORTED_LATE = ("tensorflow", "keras", "tfdist")


class _Finder:
    """Gives the program the modules that are there when it first imports one of them.

    Args:
        set_variables: What the import sets in the environment.
    """

    def __init__(self, set_variables: Mapping[str, str]) -> None:
        self._modules = {name: sys.modules.pop(name) for name in _IMPORTED_LATE}
        self._specs = {name: each.__spec__ for name, each in self._modules.items()}
        self._set_variables = set_variables
        self._putenv, self._unsetenv = os.putenv, os.unsetenv

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        """Ends the watch, and finds the module."""
        if name not in self._modules:
            return None
        os.putenv, os.unsetenv = self._putenv, self._unsetenv
        sys.meta_path.remove(self)
        # Of a module that is there, the import would take its own specification.
        others = {each: self._modules[each] for each in self._modules if each != name}
        sys.modules.update(others)
        for variable, value in self._set_variables.items():
            os.environ.setdefault(variable, value)
        spec = copy.copy(self._specs[name])
        assert spec is not None
        spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Returns the module that is there."""
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Executes nothing: the module has been executed."""
        module.__spec__ = self._specs[module.__name__]


def watch(request: ForkRequest, set_variables: Mapping[str, str]) -> None:
    """Starts this process again if its program sets a variable that comes too late.

    Args:
        request: What the process is.
        set_variables: What the import of TensorFlow sets in the environment.
    """
    sys.meta_path.insert(0, _Finder(set_variables))
    putenv, unsetenv = os.putenv, os.unsetenv
    start = _input_position()

    def check(variable: str | bytes) -> None:
        name = os.fsdecode(variable)
        if is_import_setting(name):
            _start_again(request, name, start)

    def checked_putenv(name: Any, value: Any, /) -> None:
        if os.environb.get(os.fsencode(name)) != os.fsencode(value):
            check(name)
        putenv(name, value)

    def checked_unsetenv(name: Any, /) -> None:
        check(name)
        unsetenv(name)

    os.putenv, os.unsetenv = checked_putenv, checked_unsetenv


def _input_position() -> int | None:
    """Returns where standard input is, in bytes; None if it cannot be read twice."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        return None


def _start_again(request: ForkRequest, variable: str, start: int | None) -> NoReturn:
    """Executes the program from its first line, in a fresh interpreter.

    Args:
        request: What the process is.
        variable: What the program has just set.
        start: Where standard input was at the start.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    lost = (
        ""
        if start is not None
        else ", and anything it read from standard input is gone"
    )
    said = (
        f"tfdist: this program sets {variable}, which comes too late in a forked task. "
        "It starts again from its first line: what it did so far happens twice"
        f"{lost}. Set {variable} before the launcher starts, or start it with "
        "--fork_server=off\n"
    )
    os.write(2, said.encode())
    if start is not None:
        os.lseek(0, start, os.SEEK_SET)
    os.execve(request.argv[0], request.argv, dict(request.env))
