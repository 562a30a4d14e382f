"""The fence of the Estimator: tensorflow-estimator as it can be on today's TensorFlow.

tensorflow-estimator 2.15.0 needs four things that TensorFlow 2.16 no longer has. Its
modules are loaded here by a loader of our own, and what they import is answered by us
where TensorFlow cannot. Nothing is changed in TensorFlow, in Keras or on disk: only
these modules see what follows.

*   `tf.keras` of Keras 2. They derive classes from it and use its optimizers and
    metrics, in graphs, which Keras 3 cannot be used in. They see tf_keras.
*   `tensorflow.python.distribute.estimator_training`, which ran the tasks of a cluster.
    `tfdist.estimator.roles` stands in for it.
*   The part of TensorFlow's own API generator that tensorflow-estimator exported its
    names with. A register of ours has them instead, which is where the public names of
    `tfdist.estimator` come from.
*   The packages' `__init__`, which import the TPU estimators, and they in turn modules
    that are gone. They are left out.

All else that is private and that the Estimator alone needs stands here and not in
`tfdist/_tf.py`, since tensorflow-estimator is optional, and `import tfdist` must not
need it. Tried with TensorFlow 2.16.2 and 2.21.0, each with tf_keras of the same number.
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
from tensorflow.python.distribute import (
    distribute_coordinator,
    distribute_coordinator_context,
)
from tensorflow.python.distribute.parameter_server_strategy import (
    ParameterServerStrategyExtended,
)

__all__ = [
    # Decides the device of each variable; the strategy itself has no say in it.
    "ParameterServerStrategyExtended",
    "Register",
    "load",
    "module",
    "reduce_as_in_a_session",
    "replace",
    "run_worker",
    "worker_context",
]

PACKAGE = "tensorflow_estimator"
_ESTIMATOR = f"{PACKAGE}.python.estimator"
_LEFT_OUT = (PACKAGE, f"{PACKAGE}.python", _ESTIMATOR)


class _View(ModuleType):
    """A module as it is, but for the attributes given."""

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
        """Stands for the decorator with which a symbol is exported."""

        def export(symbol: Any) -> Any:
            self.names.update(dict.fromkeys(names, symbol))
            self.names_v1.update(dict.fromkeys(names if v1 is None else v1, symbol))
            return symbol

        return export


class _SourceLoader(SourceFileLoader):
    """Runs a module whose imports are answered by `importing`."""

    importing: Any

    def exec_module(self, module: ModuleType) -> None:
        # A module's imports go through the builtins that it finds in its own names.
        own = {**vars(builtins), "__import__": self.importing}
        module.__dict__["__builtins__"] = own
        super().exec_module(module)


class _StandIn(Loader):
    """Makes a module of the names given."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self._names)


class _Finder(MetaPathFinder):
    """Finds the modules of tensorflow-estimator, and no other."""

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
            spec.loader = None  # As Python has it for a package without __init__.
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
    """Loads modules of tensorflow-estimator, given by their names in it.

    Args:
        register: Gets the names that they export.
        roles: What they find as `tensorflow.python.distribute.estimator_training`.
        modules: For example `"canned.dnn"`.
    """
    # An import of it that has failed before leaves modules behind.
    for name in [each for each in sys.modules if each.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(register, roles))
    for name in modules:
        importlib.import_module(f"{_ESTIMATOR}.{name}")


def replace(name: str, attribute: str, **instead: Any) -> None:
    """Lets a loaded module see one of its imports with other attributes."""
    where = module(name)
    setattr(where, attribute, _View(getattr(where, attribute), **instead))


def module(name: str) -> ModuleType:
    """Returns a module that has been loaded."""
    return sys.modules[f"{_ESTIMATOR}.{name}"]


def run_worker(work: Any, config: Any) -> None:
    """Calls `work(strategy)` as the task of a strategy whose workers are in step.

    Which session a task makes, and what it saves, TensorFlow decides from a context
    that only this private function can enter.
    """
    distribute_coordinator.run_distribute_coordinator(
        work,
        config.train_distribute,
        mode=distribute_coordinator.CoordinatorMode.INDEPENDENT_WORKER,
        cluster_spec=config.cluster_spec,
        task_type=config.task_type,
        task_id=config.task_id,
        session_config=config.session_config,
    )


def worker_context() -> Any:
    """Returns the context in which `work` is called."""
    return distribute_coordinator_context.get_current_worker_context()


def reduce_as_in_a_session(strategy: tf.distribute.Strategy) -> None:
    """Has a mirrored strategy add up as it would, had it been made for a session.

    Made in a program that executes eagerly, it takes collectives unless told otherwise,
    and on CPU devices these wait for ever in the session of an Estimator. Made in a
    session, it adds up on one device.

    Args:
        strategy: Of one process. Only what TensorFlow has chosen is changed.
    """
    extended = strategy.extended
    chosen = getattr(extended, "_collective_ops", None)
    on_cpu = any("cpu" in device.lower() for device in extended.worker_devices)
    if chosen is not None and extended._cross_device_ops is chosen and on_cpu:
        extended._cross_device_ops = tf.distribute.ReductionToOneDevice()
