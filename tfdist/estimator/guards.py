"""Checks of arguments before tensorflow-estimator uses them.

They wrap functions and methods of tensorflow-estimator, in the copy of its modules that
`_tf.load` makes. Its own errors come late, or do not name the cause.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from tfdist._support.errors import Error
from tfdist.estimator import _tf
from tfdist.estimator.clusters import (
    StrategyError,
    StrategyKind,
    check_cluster,
    kind_of,
)
from tfdist.estimator.environment import check_no_proxy, check_writable, read_tf_config

Arguments = dict[str, Any]


class Keras3Error(Error, ValueError):
    """An object of Keras 3 where the graph of an Estimator needs one of Keras 2."""


def install() -> None:
    """Wraps each function with its check."""
    run_config, estimator = _tf.module("run_config"), _tf.module("estimator")
    _before(run_config.RunConfig, "__init__", _check_run_config)
    _before(estimator.Estimator, "train", _check_model_dir)
    _before(_tf.module("model_fn").EstimatorSpec, "__new__", _check_metrics)
    _before(
        _tf.module("canned.optimizers"), "get_optimizer_instance_v2", _check_optimizer
    )
    _before(_tf.module("keras_lib"), "model_to_estimator", _check_model)


def _before(owner: Any, name: str, check: Callable[[Arguments], None]) -> None:
    function = getattr(owner, name)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's message names the function.
        # The call uses the bound arguments, since a check may replace one.
        check(bound.arguments)
        return function(*bound.args, **bound.kwargs)

    setattr(owner, name, checked)


def _check_run_config(arguments: Arguments) -> None:
    config = read_tf_config()
    kind = kind_of(arguments.get("train_distribute"))
    # An evaluator runs outside of the cluster that trains, so it is not checked.
    if config is not None and config.task.job != "evaluator":
        check_cluster(kind, config.cluster)
        check_no_proxy(config)
    strategy = arguments.get("eval_distribute")
    if strategy is not None and kind_of(strategy) is not StrategyKind.ONE_PROCESS:
        raise StrategyError(
            "eval_distribute must be a strategy for one process, such as "
            "tf.distribute.MirroredStrategy(), since an evaluator has no cluster; "
            f"received {type(strategy).__name__}"
        )
    for name in ("train_distribute", "eval_distribute"):
        strategy = arguments.get(name)
        if strategy is not None and kind_of(strategy) is StrategyKind.ONE_PROCESS:
            _tf.reduce_as_in_a_session(strategy)


def _check_model_dir(arguments: Arguments) -> None:
    config = arguments["self"].config
    # The other tasks do not write checkpoints, and may run where they could not.
    if config.is_chief:
        check_writable(arguments["self"].model_dir)


def _check_metrics(arguments: Arguments) -> None:
    for name, metric in (arguments.get("eval_metric_ops") or {}).items():
        if isinstance(metric, keras.metrics.Metric):
            raise _refuse(
                f"the metric {name!r} of eval_metric_ops",
                metric,
                f"tf_keras.metrics.{type(metric).__name__} or tf.compat.v1.metrics",
            )


def _check_optimizer(arguments: Arguments) -> None:
    optimizer = arguments["opt"]
    # A function that returns the optimizer is called once, and its result passed on.
    if callable(optimizer):
        optimizer = arguments["opt"] = optimizer()
    if isinstance(optimizer, keras.optimizers.Optimizer):
        legacy = f"tf_keras.optimizers.legacy.{type(optimizer).__name__}"
        raise _refuse("the optimizer", optimizer, f"{legacy}(...), or its name")


def _check_model(arguments: Arguments) -> None:
    model = arguments.get("keras_model")
    if isinstance(model, keras.Model):
        raise _refuse("keras_model", model, "a tf_keras model")


def _refuse(what: str, received: object, instead: str) -> Keras3Error:
    cls = type(received)
    return Keras3Error(
        f"{what} is from Keras 3 ({cls.__module__}.{cls.__name__}), which does not work "
        f"in the graph of an Estimator: use {instead}"
    )
