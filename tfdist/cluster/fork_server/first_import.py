"""Checks on a program's first import of TensorFlow, which a fork has already done.

    os.environ["KERAS_BACKEND"] = "jax"
    import keras

In a forked process this would silently do nothing, so the import is refused. The
launcher spawns a task whose source shows that it does this, so that few programs get here.
"""

import copy
import importlib.machinery
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tf_config import contract
from tfdist.cluster.fork_server.imports import Imports

_IMPORTED_LATE = ("tensorflow", "keras", "tfdist")


class FirstImport:
    """Hands the program the modules that are there, when it first imports one.

    It is a finder on `sys.meta_path` until then.
    """

    def __init__(self, imports: Imports) -> None:
        # Otherwise an import would take them from there, and ask no finder.
        self._modules = {name: sys.modules.pop(name) for name in _IMPORTED_LATE}
        self._specs = {name: each.__spec__ for name, each in self._modules.items()}
        self._imports = imports
        self._environ = dict(os.environ)
        self._path = tuple(sys.path)

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        """Finds one of the modules."""
        if name not in self._modules:
            return None
        spec = copy.copy(self._specs[name])
        assert spec is not None
        spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Returns the module that is there; refuses what the program did too late."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            try:
                self._check(spec.name)
            except RuntimeError:
                sys.meta_path.insert(0, self)
                raise
            # The import would take the specification of a module that is there.
            others = {*self._modules} - {spec.name}
            sys.modules.update({name: self._modules[name] for name in others})
            for variable, value in self._imports.set_variables.items():
                os.environ.setdefault(variable, value)
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Executes nothing: the module has been executed."""
        module.__spec__ = self._specs[module.__name__]

    def _check(self, name: str) -> None:
        done = [f"sets {each}" for each in changed(self._environ, os.environ)]
        if self._path != tuple(sys.path):
            before, now = (self._imports.elsewhere(p) for p in (self._path, sys.path))
            moved = ", ".join(sorted(now - before))
            done += [f"changes where Python finds {moved}"] if moved else []
        if done:
            raise RuntimeError(refusal(name, done))


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns the variables that an import reads, and that differ.

    >>> changed({"HOME": "/root", "A": "1"}, {"HOME": "/tmp", "A": "2", "TF_X": ""})
    ['HOME', 'TF_X']
    """
    differing = {name for name, _ in before.items() ^ now.items()}
    return sorted(filter(is_import_setting, differing))


def is_import_setting(name: str) -> bool:
    """Returns True if TensorFlow, Keras or a dependency may read `name` on import.

    >>> [is_import_setting(name) for name in ("KERAS_BACKEND", "HOME", "TF_CONFIG")]
    [True, True, False]
    """
    prefixes = (
        *("TF_", "TF2_", "KERAS_", "XLA_", "TPU_", "GRPC_", "PROTOCOL_BUFFERS_"),
        *("OMP_", "MKL_", "OPENBLAS_", "GOTO_", "KMP_", "NUMEXPR_", "NPY_", "SCIPY_"),
        *("MPL", "ARROW_", "SKLEARN_", "AUTOGRAPH_", "LD_", "MALLOC_", "PYTHON"),
        "XDG_",
    )
    directories = ("HOME", "TMPDIR", "TEMP", "TMP")
    # No import reads the variables that the launcher sets for each task.
    is_name = name.isidentifier() and name.isupper() and name not in contract.READ_LATE
    return is_name and (name in directories or name.startswith(prefixes))


def refusal(name: str, done: Sequence[str]) -> str:
    """Returns the message of the error about what a program did before an import."""
    return (
        f"before it imports {name}, this program {' and '.join(done)}, which comes too "
        f"late: it is a forked task, for which {name} was imported before. Start the "
        "launcher with --fork_server=off, or set it before the launcher starts"
    )
