"""Where Keras's trainer asks `ParameterServerStrategy` instead of itself.

Keras 3 builds its own train, test and predict functions around `strategy.run` and
calls them on the chief. There is no hook to schedule from, so methods of its trainer
are replaced; each behaves as before unless the model's strategy is ours. They are
replaced when the first strategy is constructed, never on import.
"""

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdist import _tf
from tfdist.checkpoint.variables import in_a_function
from tfdist.keras import building
from tfdist.keras.saving import join_before_saving
from tfdist.liveness import lost_ps
from tfdist.liveness.step_error import print_records_once, shorten_the_coordinators_log
from tfdist.parameter_server.fit import refusals
from tfdist.parameter_server.fit.export import in_one_piece
from tfdist.parameter_server.fit.feed import BatchLayout, FedDataset
from tfdist.parameter_server.fit.resume import fit_resumably
from tfdist.parameter_server.fit.step_function import PredictFunction, StepFunction
from tfdist.parameter_server.strategy import ParameterServerStrategy
from tfdist.variables.creation import variable_initializer, variable_path
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.variable import ParameterServerVariable

_log = logging.getLogger("tfdist")
_warned: "weakref.WeakSet[Any]" = weakref.WeakSet()
_fed: "weakref.WeakKeyDictionary[Any, FedDataset]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_installed = False


def install() -> None:
    """Installs the hooks; a second call does nothing."""
    global _installed
    with _lock:
        if _installed:
            return
        _replace(_tf.TensorFlowTrainer, "make_train_function", _make_train_function)
        _replace(_tf.TensorFlowTrainer, "make_test_function", _make_test_function)
        _replace(_tf.TensorFlowTrainer, "make_predict_function", _make_predict_function)
        _replace(_tf.TensorFlowTrainer, "_maybe_symbolic_build", _maybe_symbolic_build)
        _tf.TensorFlowTrainer.fit = _resuming(_tf.TensorFlowTrainer.fit)
        for name in ("fit", "evaluate", "predict"):
            _settle_on_error(_tf.TensorFlowTrainer, name)
        building.install()
        join_before_saving()
        keras.Model.export = _exporting_whole_variables(keras.Model.export)
        _replace(_tf.TFEpochIterator, "_get_iterator", _get_iterator)
        _replace(_tf.TFEpochIterator, "tf_sync", _tf_sync)
        _tf.TFEpochIterator._enumerate_iterator = _from_the_checkpoint(
            _tf.TFEpochIterator._enumerate_iterator
        )
        _tf.KerasVariable.sparse_read = property(_sparse_read)
        _tf.KerasVariable.constraint = property(
            _constraint, _tf.KerasVariable.constraint.fset
        )
        _tf.KerasVariable._initialize = _naming_variables(_tf.KerasVariable._initialize)
        _tf.KerasVariable._initialize_with_initializer = _telling_the_initializer(
            _tf.KerasVariable._initialize_with_initializer
        )
        shorten_the_coordinators_log()
        print_records_once()
        _installed = True


def _replace(owner: type, name: str, ours: Callable[..., Any]) -> None:
    keras_method = getattr(owner, name)

    @functools.wraps(keras_method)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(_strategy_of(self), ParameterServerStrategy):
            return ours(self, *args, **kwargs)
        if name == "make_train_function" and self not in _warned:
            _warned.add(self)
            _log.warning(
                "%r was built outside of strategy.scope(): it trains on the chief "
                "alone, and no worker takes part. Build or load it inside "
                "`with strategy.scope():`",
                self.name,
            )
        return keras_method(self, *args, **kwargs)

    setattr(owner, name, method)


def _settle_on_error(owner: type, name: str) -> None:
    keras_method = getattr(owner, name)

    @functools.wraps(keras_method)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _strategy_of(self)
        if not isinstance(strategy, ParameterServerStrategy):
            return keras_method(self, *args, **kwargs)
        try:
            with strategy.activity.call():
                return keras_method(self, *args, **kwargs)
        except BaseException as error:
            # Whoever saves or counts in `except` shall not do so while workers write.
            strategy.in_flight.settle()
            if lost := lost_ps.explained(error, strategy.servers):
                raise lost.with_traceback(error.__traceback__) from None
            raise

    setattr(owner, name, method)


def _strategy_of(trainer_or_iterator: Any) -> tf.distribute.Strategy | None:
    if isinstance(trainer_or_iterator, _tf.TensorFlowTrainer):
        return trainer_or_iterator.distribute_strategy
    return trainer_or_iterator._distribute_strategy


def _make_train_function(model: Any, force: bool = False) -> Any:
    strategy = model.distribute_strategy
    strategy.in_flight.join()
    if model.train_function is None or force:
        refusals.check_model(model)
        strategy.check_placement_is_complete([w._value for w in model.weights])

        step = building.step_of(model, building.TRAIN)

        def train_step(batch: Any) -> Any:
            strategy.count_step()
            return step(batch)

        model.train_function = StepFunction(
            model,
            strategy,
            train_step,
            model.steps_per_execution,
            workers_may_read=True,
        )
    return model.train_function


def _make_test_function(model: Any, force: bool = False) -> Any:
    strategy = model.distribute_strategy
    strategy.in_flight.join()
    if model.test_function is None or force:
        refusals.check_model(model)
        model.test_function = StepFunction(
            model,
            strategy,
            building.step_of(model, building.TEST),
            model.steps_per_execution,
        )
    return model.test_function


def _make_predict_function(model: Any, force: bool = False) -> Any:
    strategy = model.distribute_strategy
    strategy.in_flight.join()
    if model.predict_function is None or force:
        model.predict_function = PredictFunction(model, strategy)
    return model.predict_function


def _maybe_symbolic_build(
    model: Any, iterator: Any = None, data_batch: Any = None
) -> None:
    refusals.check_scope(model)
    if iterator is not None:
        # Keras would take a batch for this, and a generator would not give it back.
        spec = _dataset_of(iterator).element_spec
        data_batch = BatchLayout(spec).structure
    step = building.step_of(model, building.stage())
    building.build(model, model.distribute_strategy, data_batch, step)


def _dataset_of(epoch_iterator: Any) -> tf.data.Dataset:
    return epoch_iterator._distributed_dataset.tfdist_source


def _get_iterator(epoch_iterator: Any) -> FedDataset:
    strategy = epoch_iterator._distribute_strategy
    if epoch_iterator not in _fed:
        _fed[epoch_iterator] = FedDataset(
            _dataset_of(epoch_iterator), strategy.coordinator, strategy.num_workers
        )
    return _fed[epoch_iterator]


def _tf_sync(epoch_iterator: Any) -> None:
    epoch_iterator._distribute_strategy.in_flight.join()


def _resuming(fit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fit)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = _strategy_of(self)
        if isinstance(strategy, ParameterServerStrategy) and strategy.resumes_fit:
            return fit_resumably(fit, self, args, kwargs)
        return fit(self, *args, **kwargs)

    return method


def _from_the_checkpoint(
    enumerate_iterator: Callable[..., Iterator[Any]],
) -> Callable[..., Iterator[Any]]:
    @functools.wraps(enumerate_iterator)
    def method(self: Any) -> Iterator[Any]:
        strategy = _strategy_of(self)
        steps = enumerate_iterator(self)
        if isinstance(strategy, ParameterServerStrategy) and strategy.resumable_fit:
            return strategy.resumable_fit.follow(self, steps)
        return steps

    return method


def _exporting_whole_variables(export: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(export)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        strategy = self.distribute_strategy
        if not isinstance(strategy, ParameterServerStrategy):
            return export(self, *args, **kwargs)
        strategy.in_flight.join()
        with in_one_piece(self):
            return export(self, *args, **kwargs)

    return method


def _sparse_read(variable: Any) -> Callable[..., tf.Tensor]:
    # `tf.gather` looks for this method. With it an embedding moves the rows that it
    # looks up; without it, the whole table.
    value = variable._value
    if not isinstance(value, ParameterServerVariable | PartitionedVariable):
        raise AttributeError("sparse_read")
    return value.look_up


def _constraint(variable: Any) -> Callable[[Any], tf.Tensor] | None:
    # Computed beside the weight, a projection is applied in an instant. On a worker
    # the weight would travel there and back; others project it meanwhile, and the sum
    # of the same correction from each overshoots.
    constraint = variable._constraint
    on_ps = isinstance(variable._value, ParameterServerVariable)
    if constraint is None or not on_ps or tf.executing_eagerly():
        return constraint

    def project(weight: Any) -> tf.Tensor:
        with tf.device(variable._value.device):
            return constraint(weight)

    return project


class PartitionedKerasVariable(keras.Variable):
    """A Keras variable whose value is in shards.

    Only by its class does TensorFlow's checkpoint know that it has slices to save.
    """

    def _gather_saveables_for_checkpoint(self) -> dict[str, Callable[..., Any]]:
        is_exporting = not (tf.executing_eagerly() or in_a_function.get())
        return {} if is_exporting else {"VARIABLE_VALUE": self._value.saveables}

    # `tf.saved_model.save` traces functions that read the shards, and saves those.
    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel":
            shards = enumerate(self._value.shards)
            children |= {f"shard_{i}": shard for i, shard in shards}
        return children

    def _export_to_saved_model_graph(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        return np.asarray(self._value, dtype=dtype)


def _naming_variables(initialize: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialize)
    def method(variable: Any, value: Any) -> None:
        token = variable_path.set(variable.path)
        try:
            initialize(variable, value)
        finally:
            variable_path.reset(token)
        if isinstance(variable._value, PartitionedVariable):
            variable.__class__ = PartitionedKerasVariable

    return method


def _telling_the_initializer(initialize: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(initialize)
    def method(variable: Any, initializer: Any) -> None:
        token = variable_initializer.set(initializer)
        try:
            initialize(variable, initializer)
        finally:
            variable_initializer.reset(token)

    return method
