"""Where Keras's trainer asks a `SynchronousStrategy` instead of itself.

Each replaced method behaves as before unless the model's strategy is ours. They are
replaced when the first strategy is constructed, never on import.
"""

import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import keras

from tfdist import _tf
from tfdist.keras import building
from tfdist.keras.scope import outside_of_scope
from tfdist.liveness.peers import explained
from tfdist.synchronous.fit import agreement, callbacks
from tfdist.synchronous.fit import refusals as checks
from tfdist.synchronous.fit.computation import hook_computation
from tfdist.synchronous.fit.input import BatchStructure, ShardedData
from tfdist.synchronous.fit.step import PredictFunction, StepFunction
from tfdist.synchronous.strategy import SynchronousStrategy

_log = logging.getLogger("tfdist")
_warned: "weakref.WeakSet[Any]" = weakref.WeakSet()
_lock = threading.Lock()
_installed = False


def install() -> None:
    """Installs the hooks; a second call does nothing."""
    global _installed
    with _lock:
        if _installed:
            return
        trainer = _tf.TensorFlowTrainer
        _replace(trainer, "make_train_function", _make_train_function)
        _replace(trainer, "make_test_function", _make_test_function)
        _replace(trainer, "make_predict_function", _make_predict_function)
        _replace(trainer, "_maybe_symbolic_build", _maybe_symbolic_build)
        _replace(trainer, "_get_metrics_result_or_logs", lambda model, logs: logs)
        _replace(_tf.TFEpochIterator, "_get_iterator", _get_iterator)
        _hook_epoch_iterator()
        _hook_fit()
        _hook_saving()
        building.install()
        hook_computation()
        _installed = True


def _replace(owner: type, name: str, ours: Callable[..., Any]) -> None:
    keras_method = getattr(owner, name)

    @functools.wraps(keras_method)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(_strategy_of(self), SynchronousStrategy):
            return ours(self, *args, **kwargs)
        if name == "make_train_function" and self not in _warned:
            _warned.add(self)
            _log.warning(
                "%r was built outside of strategy.scope(): this process trains it "
                "alone, and no other worker takes part. Build or load it inside "
                "`with strategy.scope():`",
                self.name,
            )
        return keras_method(self, *args, **kwargs)

    setattr(owner, name, method)


def _strategy_of(trainer_or_iterator: Any) -> Any:
    if isinstance(trainer_or_iterator, _tf.TensorFlowTrainer):
        return trainer_or_iterator.distribute_strategy
    return trainer_or_iterator._distribute_strategy


def _make_train_function(model: Any, force: bool = False) -> Any:
    if model.train_function is None or force:
        checks.check_model(model)
        model.train_function = StepFunction(
            model, model.distribute_strategy, building.step_of(model, building.TRAIN)
        )
    return model.train_function


def _make_test_function(model: Any, force: bool = False) -> Any:
    if model.test_function is None or force:
        model.test_function = StepFunction(
            model, model.distribute_strategy, building.step_of(model, building.TEST)
        )
    return model.test_function


def _make_predict_function(model: Any, force: bool = False) -> Any:
    if model.predict_function is None or force:
        model.predict_function = PredictFunction(model, model.distribute_strategy)
    return model.predict_function


def _maybe_symbolic_build(
    model: Any, iterator: Any = None, data_batch: Any = None
) -> None:
    checks.check_optimizer(model)
    strategy = model.distribute_strategy
    if iterator is not None:
        data_batch = iterator._distributed_dataset.element_spec
    structure = BatchStructure(data_batch)
    step = StepFunction(model, strategy, building.step_of(model, building.stage()))

    def rehearse(batch: Any) -> None:
        step.rehearse(structure, batch)

    building.build(
        model, strategy, structure.specs, rehearse, always=bool(model.run_eagerly)
    )


def _get_iterator(epoch_iterator: Any) -> Any:
    return epoch_iterator._distributed_dataset


def _hook_epoch_iterator() -> None:
    owner = _tf.TFEpochIterator
    keras_init = owner.__init__

    @functools.wraps(keras_init)
    def init(
        self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if not isinstance(distribute_strategy, SynchronousStrategy):
            keras_init(self, distribute_strategy, *args, **kwargs)
            return
        super(owner, self).__init__(*args, **kwargs)
        self._distribute_strategy = distribute_strategy
        self._distributed_dataset = ShardedData(self.data_adapter, distribute_strategy)
        if self._distributed_dataset.is_own:
            self.data_adapter = _OfUnknownLength(self.data_adapter)
            self._num_batches = None

    owner.__init__ = init


class _OfUnknownLength:
    """A data adapter whose number of batches is not the number of steps."""

    num_batches = None

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def _hook_fit() -> None:
    owner = _tf.TensorFlowTrainer
    keras_fit = owner.fit

    @functools.wraps(keras_fit)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _strategy_of(self)
        if isinstance(strategy, SynchronousStrategy):
            bound = _bind_fit(keras_fit, self, args, kwargs)
            agreement.check_arguments(bound, strategy)
            bound["callbacks"] = callbacks.for_worker(bound.get("callbacks"), strategy)
            history = keras_fit(self, **bound)
            if strategy.num_workers > 1:
                # What the chief's callbacks have written is there for all to load.
                strategy.barrier()
            return history
        return keras_fit(self, *args, **kwargs)

    owner.fit = fit
    for name in ("fit", "evaluate", "predict"):
        _explain_failures(owner, name)


def _explain_failures(owner: type, name: str) -> None:
    keras_method = getattr(owner, name)

    @functools.wraps(keras_method)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _strategy_of(self)
        if not isinstance(strategy, SynchronousStrategy):
            return keras_method(self, *args, **kwargs)
        extended = strategy.extended
        with explained(extended.lost_peers), extended.call():
            return keras_method(self, *args, **kwargs)

    setattr(owner, name, method)


def _bind_fit(
    fit: Callable[..., Any], model: Any, args: Any, kwargs: Any
) -> dict[str, Any]:
    bound = inspect.signature(fit).bind(model, *args, **kwargs).arguments
    return {name: value for name, value in bound.items() if name != "self"}


def _hook_saving() -> None:
    """Has the chief alone write files, and Keras read and write them out of the scope.

    Keras makes an optimizer to compare with as it saves. In the scope, its variables
    would be made on all workers, and the others do not save.
    """
    for name in ("save", "save_weights", "export"):
        _write_on_chief_alone(keras.Model, name)
    _write_on_chief_alone(_tf.saving_lib, "save_model")
    _write_on_chief_alone(_tf.saving_lib, "save_weights_only")
    _write_on_chief_alone(_tf.legacy_h5_format, "save_model_to_hdf5")
    load = _tf.saving_lib.load_weights_only

    @functools.wraps(load)
    def load_weights_only(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(_saved_by(model), SynchronousStrategy):
            return load(model, *args, **kwargs)
        with outside_of_scope():
            return load(model, *args, **kwargs)

    _tf.saving_lib.load_weights_only = load_weights_only


def _write_on_chief_alone(owner: Any, name: str) -> None:
    keras_function = getattr(owner, name)

    @functools.wraps(keras_function)
    def function(model: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _saved_by(model)
        if not isinstance(strategy, SynchronousStrategy):
            return keras_function(model, *args, **kwargs)
        if not strategy.is_chief:
            return None
        with outside_of_scope():
            return keras_function(model, *args, **kwargs)

    setattr(owner, name, function)


def _saved_by(model: Any) -> Any:
    return getattr(model, "distribute_strategy", None)
