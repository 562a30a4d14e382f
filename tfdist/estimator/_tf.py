"""The Estimator's fence: tensorflow-estimator, loaded on a current TensorFlow.

tensorflow-estimator 2.15.0 imports four things that TensorFlow 2.16 removed. This module
loads its modules with a custom loader, which answers those imports. TensorFlow, Keras
and the files on disk stay unchanged: only these modules see the replacements.

*   `tf.keras` of Keras 2. tensorflow-estimator derives classes from it and uses its
    optimizers and metrics in graphs, which Keras 3 does not support. It gets tf_keras.
*   `tensorflow.python.distribute.estimator_training`, which ran the tasks of a cluster.
    It gets `tfdist.estimator.roles`.
*   The part of TensorFlow's API generator that exported tensorflow-estimator's names.
    It gets a register, from which `tfdist.estimator` takes its public names.
*   The packages' `__init__` files, which import the TPU estimators, and through them
    modules that TensorFlow removed. They are skipped.

The private symbols that only the Estimator needs are here and not in `tfdist/_tf/`,
because tensorflow-estimator is optional and `import tfdist` must work without it. Tried
with TensorFlow 2.16.2 and 2.21.0, each with the tf_keras of the same version.
"""

import builtins
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType, SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.parameter_server_strategy import (
    ParameterServerStrategyExtended,
)

__all__ = [
    # The class that decides the device of each variable. The public strategy delegates
    # to it, and takes no placement.
    "ParameterServerStrategyExtended",
    "Register",
    "load",
    "module",
    "reduce_as_in_a_session",
    "replace",
]

PACKAGE = "tensorflow_estimator"
_ESTIMATOR = f"{PACKAGE}.python.estimator"
_LEFT_OUT = (PACKAGE, f"{PACKAGE}.python", _ESTIMATOR)


class _View(ModuleType):
    """A module with some attributes replaced."""

    def __init__(self, module: Any, **instead: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(instead)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _tensorflow_with_keras_2() -> ModuleType:
    import tf_keras
    from tf_keras.api._v1 import keras as keras_v1

    compat = _View(
        tf.compat,
        v1=_View(
            tf.compat.v1, keras=keras_v1, layers=keras_v1.__internal__.legacy.layers
        ),
        v2=_View(tf.compat.v2, keras=tf_keras),
    )
    return _View(tf, keras=tf_keras, compat=compat)


class Register:
    """The public names of tensorflow-estimator, as its modules export them."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.names_v1: dict[str, Any] = {}

    def __call__(self, *names: str, v1: Sequence[str] | None = None) -> Any:
        """Returns a decorator that registers a symbol under its public names."""

        def export(symbol: Any) -> Any:
            self.names.update(dict.fromkeys(names, symbol))
            self.names_v1.update(dict.fromkeys(names if v1 is None else v1, symbol))
            return symbol

        return export

    def replace(self, name: str, symbol: Any) -> None:
        """Puts another symbol in place of a public name of both versions."""
        self.names[name] = self.names_v1[name] = symbol


class _SourceLoader(SourceFileLoader):
    """Runs a module whose import statements call `importing`."""

    importing: Any

    def exec_module(self, module: ModuleType) -> None:
        # An import statement calls `__import__` of the module's own `__builtins__`.
        own = {**vars(builtins), "__import__": self.importing}
        module.__dict__["__builtins__"] = own
        super().exec_module(module)


class _StandIn(Loader):
    """Creates a module that has the given names and nothing else."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self._names)


class _Finder(MetaPathFinder):
    """Finds the modules of tensorflow-estimator, and no others."""

    def __init__(self, register: Register, roles: Any) -> None:
        self._register = register
        self._roles = SimpleNamespace(estimator_training=roles)
        self._tensorflow = _tensorflow_with_keras_2()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        if fullname == f"{_ESTIMATOR}.estimator_export":
            return ModuleSpec(fullname, _StandIn({"estimator_export": self._register}))
        spec = PathFinder.find_spec(fullname, path)
        if spec is None:
            return None
        if fullname in _LEFT_OUT:
            spec.loader = None  # As for a package without __init__.
        elif isinstance(spec.loader, SourceFileLoader):
            loader = _SourceLoader(spec.loader.name, spec.loader.path)
            loader.importing = self._import
            spec.loader = loader
        return spec

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if name == "tensorflow" and not fromlist:
            return self._tensorflow
        if name == "tensorflow.python.distribute" and fromlist == (
            "estimator_training",
        ):
            return self._roles
        return builtins.__import__(name, globals, locals, fromlist or (), level)


def load(register: Register, roles: Any, modules: Sequence[str]) -> None:
    """Loads modules of tensorflow-estimator, by names such as `"canned.dnn"`.

    The register receives the names that they export. `roles` is what they import as
    `tensorflow.python.distribute.estimator_training`.
    """
    # An earlier import that failed may have left some of the modules half initialized.
    for name in [each for each in sys.modules if each.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(register, roles))
    for name in modules:
        importlib.import_module(f"{_ESTIMATOR}.{name}")


def replace(name: str, attribute: str, **instead: Any) -> None:
    """Replaces attributes of a module that a loaded module imports, for that one alone."""
    where = module(name)
    setattr(where, attribute, _View(getattr(where, attribute), **instead))


def module(name: str) -> ModuleType:
    """Returns a loaded module by its name within tensorflow-estimator."""
    return sys.modules[f"{_ESTIMATOR}.{name}"]


def reduce_as_in_a_session(strategy: tf.distribute.Strategy) -> None:
    """Makes a mirrored strategy on CPUs reduce on one device.

    A mirrored strategy that is created while TensorFlow executes eagerly chooses
    collectives. On CPU devices these wait forever in an Estimator's session. Created in a
    session, the strategy would choose a reduction to one device.

    The cross-device ops of a strategy cannot be read or set publicly. Without
    `_cross_device_ops`, users would have to pass
    `cross_device_ops=tf.distribute.ReductionToOneDevice()`. A user's own is left alone,
    because the class of the collectives is not public.
    """
    extended = strategy.extended
    if not any("cpu" in device.lower() for device in extended.worker_devices):
        return
    chosen = getattr(extended, "_cross_device_ops", None)
    if type(chosen).__name__ == "CollectiveAllReduce":
        extended._cross_device_ops = tf.distribute.ReductionToOneDevice()
