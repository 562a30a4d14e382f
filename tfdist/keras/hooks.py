"""Patches of Keras's trainer, which ask the driver of the strategy.

A patched method behaves as before unless the model's strategy supplies a `fit_driver`
(see `tfdist.keras.driver`). Constructing the first driver installs the patches;
importing this module patches nothing.
"""

import contextlib
import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.endings import ending_in_the_program
from tfdist._support.errors import advise
from tfdist._support.types import DataAdapter, EpochIterator, Logs
from tfdist.cluster.lost_variables import check_not_lost
from tfdist.cluster.membership import MEMBERSHIP
from tfdist.keras import (
    building,
    distributed_data,
    interrupts,
    own_traces,
    progress,
    saving,
    step_hooks,
    variable_hooks,
)
from tfdist.keras.driver import driver_of
from tfdist.keras.optimizers import optimizers_of
from tfdist.keras.refused import ScopeError

_log = logging.getLogger("tfdist")
_STRINGS = (
    "Keras takes no NumPy arrays of strings or objects: pass strings as tf.constant(x), or "
    "as a tf.data.Dataset"
)
# Models that were reported to be out of scope. Weak, so that it keeps none alive.
_warned: "weakref.WeakSet[Any]" = weakref.WeakSet()
_lock = threading.Lock()
_installed = False


def install() -> None:
    """Installs all patches; a second call does nothing."""
    global _installed
    with _lock:
        if _installed:
            return
        trainer, epoch_iterator = _trainer(), _tf.TFEpochIterator
        for stage in ("train", "test", "predict"):
            _ask_driver(trainer, f"make_{stage}_function", _maker(stage))
        _ask_driver(trainer, "_maybe_symbolic_build", _build)
        _ask_driver(trainer, "_get_metrics_result_or_logs", _epoch_logs)
        _ask_driver(trainer, "reset_metrics", _reset)
        _ask_driver(epoch_iterator, "reset", _restart)
        _ask_driver(epoch_iterator, "tf_sync", _join)
        _ask_driver(epoch_iterator, "_enumerate_iterator", _enumerate_steps)
        # Each of these wraps the one before: a driver that surrounds a call knows its
        # stage, and tracebacks are cut last, when all frames are in them.
        for method in ("fit", "evaluate", "predict"):
            _surround_by_driver(trainer, method)
        for method, stage in building.STAGES.items():
            _note_stage(trainer, method, stage)
        for method in building.STAGES:
            shortened = ending_in_the_program(
                getattr(trainer, method), _is_explained, _is_folded
            )
            setattr(trainer, method, shortened)
        _take_data_of_driver(epoch_iterator)
        own_traces.install()
        saving.install()
        step_hooks.install()
        variable_hooks.install()
        _installed = True


def _ask_driver(owner: type, name: str, ours: Callable[..., Any]) -> None:
    """Patches a method: under a driver, it calls `ours(driver, method, self, ...)`."""
    keras_method = getattr(owner, name)

    @functools.wraps(keras_method)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        driver = driver_of(_strategy_of(self))
        if driver is not None:
            return ours(driver, keras_method, self, *args, **kwargs)
        if name.startswith("make_"):
            check_not_lost(map(_tf.value_of, self.variables))
        if name == "make_train_function":
            _check_scope(self)
        return keras_method(self, *args, **kwargs)

    setattr(owner, name, method)


def _is_explained(model: keras.Model, error: BaseException) -> bool:
    """Returns True if an error's message suffices, so its traceback may be short."""
    is_ours = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    if is_ours:  # Also of a model that was built before any strategy.
        return keras.config.is_traceback_filtering_enabled()
    return _is_folded(model) and isinstance(error, tf.errors.OpError)


def _is_folded(model: keras.Model) -> bool:
    """Returns True if tracebacks lack the frames of tfdist."""
    return (
        keras.config.is_traceback_filtering_enabled()
        and driver_of(_strategy_of(model)) is not None
    )


def _check_scope(model: keras.Model) -> None:
    """Warns that no worker trains a model, which was built outside of the scope.

    Raises:
        ScopeError: If its optimizer is from inside, and would update it on no replica.
    """
    name = getattr(model, "name", type(model).__name__)
    strategy = MEMBERSHIP.strategy
    inside = [each._distribution_strategy for each in optimizers_of(model)]
    if strategy is not None and strategy in inside:
        raise ScopeError(
            f"{name!r} was built outside of strategy.scope(), and its optimizer inside, so "
            "that no worker can train it. Build or load the model inside `with "
            "strategy.scope():`, too, even one that has no weights yet"
        )
    if model not in _warned:
        _warned.add(model)
        _log.warning(
            "%r was built outside of strategy.scope(): this process trains it alone, "
            "and no worker takes part. Build or load it inside `with strategy.scope():`",
            name,
        )


def _strategy_of(trainer_or_iterator: Any) -> Any:
    if isinstance(trainer_or_iterator, _trainer()):
        return trainer_or_iterator.distribute_strategy
    return trainer_or_iterator._distribute_strategy


def _trainer() -> Any:
    """Returns the class that `keras.Model` inherits its `fit` from.

    Others may have it, too, and train with the same epoch iterator.
    """
    return next(each for each in keras.Model.__mro__ if "fit" in vars(each))


def _maker(stage: str) -> Callable[..., Any]:
    name = f"{stage}_function"

    def make(driver: Any, _: Any, model: keras.Model, force: bool = False) -> Any:
        # A step in flight may still need the function that is replaced here.
        driver.join()
        if getattr(model, name) is None or force:
            function = getattr(driver, name)(model)
            if not callable(function):
                raise TypeError(
                    f"{type(driver).__name__}.{name} must return a function; received "
                    f"{function!r}"
                )
            setattr(model, name, function)
        return getattr(model, name)

    return make


def _build(
    driver: Any,
    _: Any,
    model: keras.Model,
    iterator: Any = None,
    data_batch: Any = None,
) -> None:
    if iterator is not None:
        # Keras would take a batch to learn its structure, and a generator cannot put
        # the batch back.
        data_batch = iterator._distributed_dataset.element_spec
    driver.build(model, data_batch)


def _epoch_logs(
    driver: Any, keras_method: Callable[..., Any], model: keras.Model, logs: Logs
) -> Any:
    # Keras's method reads the metrics. In unison, the logs of a step already cover the
    # epoch. Without any, no step had ended when the last one was sent.
    if driver.in_unison:
        return logs
    return keras_method(model, logs or model.get_metrics_result())


def _reset(driver: Any, keras_method: Callable[..., Any], model: keras.Model) -> None:
    # Steps in flight would add to some variables before, and to others after the reset.
    driver.join()
    with driver.waiting("reset_metrics"):
        keras_method(model)


def _restart(
    driver: Any, keras_method: Callable[..., Any], epoch_iterator: EpochIterator
) -> None:
    iterator = epoch_iterator._current_iterator
    keras_method(epoch_iterator)
    # A generator cannot start again, nor threads that read ahead of endless data. Keras
    # makes a new iterator whenever `fit` validates: it loses the batches that this one has
    # read ahead, and repeats a generator's first two.
    if epoch_iterator.reads_on and not getattr(iterator, "is_at_end", False):
        epoch_iterator._current_iterator = iterator


def _join(
    driver: Any, keras_method: Callable[..., Any], epoch_iterator: EpochIterator
) -> None:
    if driver.in_unison:
        keras_method(epoch_iterator)
    driver.join()


def _enumerate_steps(
    driver: Any, keras_method: Callable[..., Any], epoch_iterator: EpochIterator
) -> Iterator[Any]:
    strides = driver.steps(epoch_iterator, keras_method(epoch_iterator))
    return interrupts.steps(progress.counted(progress.reported(strides, driver)))


def _surround_by_driver(owner: type, name: str) -> None:
    keras_method = getattr(owner, name)
    signature = inspect.signature(keras_method)

    @functools.wraps(keras_method)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        driver = driver_of(_strategy_of(self))
        if driver is None:
            return keras_method(self, *args, **kwargs)
        # By name, so that a driver can change them whichever way the user passed them.
        arguments = dict(signature.bind(self, *args, **kwargs).arguments)
        del arguments["self"]
        arguments |= arguments.pop("kwargs", {})
        for data in arguments.keys() & {"x", "validation_data"}:
            arguments[data] = distributed_data.undistributed(arguments[data])
        with (
            driver.running(self, name, arguments),
            progress.recording(_strategy_of(self), name, arguments),
            interrupts.noted(),
        ):
            return keras_method(self, **arguments)

    setattr(owner, name, method)


def _note_stage(owner: type, name: str, stage: str) -> None:
    keras_method = getattr(owner, name)

    @functools.wraps(keras_method)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        driver = driver_of(_strategy_of(self)) if name.endswith("_on_batch") else None
        waiting = driver.waiting(name) if driver else contextlib.nullcontext()
        with building.in_stage(stage), waiting:
            return keras_method(self, *args, **kwargs)

    setattr(owner, name, method)


def _take_data_of_driver(owner: Any) -> None:
    keras_init = owner.__init__

    @functools.wraps(keras_init)
    def init(
        self: Any, distribute_strategy: Any = None, *args: object, **kwargs: object
    ) -> None:
        driver = driver_of(distribute_strategy)
        if driver is None:
            keras_init(self, distribute_strategy, *args, **kwargs)
            return
        # Skip Keras's own `__init__`, which always distributes the dataset.
        super(owner, self).__init__(*args, **kwargs)
        self._distribute_strategy = distribute_strategy
        adapter = self.data_adapter
        if isinstance(kwargs.get("x"), tf.data.Dataset):
            check_not_lost(_tf.captured_by(kwargs["x"]))
        self.reads_on = inspect.isgenerator(kwargs.get("x")) or (
            adapter.num_batches is None and bool(getattr(adapter, "enqueuer", None))
        )
        try:
            data = self._distributed_dataset = driver.data(adapter)
        except ValueError as error:
            if "Invalid dtype" in str(error):
                advise(error, _STRINGS)
            raise
        if not hasattr(data, "element_spec"):
            raise TypeError(
                f"{type(driver).__name__}.data must return a tf.data.Dataset, or another "
                f"iterable with an element_spec; received {type(data).__name__}"
            )
        num_batches = getattr(data, "num_batches", adapter.num_batches)
        if num_batches != adapter.num_batches:
            self.data_adapter = _AdapterWithLength(adapter, num_batches)
            self._num_batches = num_batches

    owner.__init__ = init


class _AdapterWithLength:
    """A data adapter with a different number of batches."""

    def __init__(self, adapter: DataAdapter, num_batches: int | None) -> None:
        self._adapter = adapter
        self.num_batches = num_batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)
