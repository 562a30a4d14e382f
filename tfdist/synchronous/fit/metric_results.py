"""Finds the metric that a step's log comes from.

A replica's metric has seen only the replica's examples. A log that a `train_step` took from
a metric is computed again once the states of all replicas are added up. The log's name does
not tell its metric: a `train_step` may choose any.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import keras

from tfdist._support.types import Logs, Nest
from tfdist.synchronous.replica.mean_by_word import updating_metric

_CHANGES = ("update_state", "reset_state")


@dataclass(frozen=True)
class LogSource:
    """The metric that a log comes from.

    Attributes:
        metric: The metric.
        keys: The path to the log if the metric's result is a dict, or a dict of dicts.
    """

    metric: keras.metrics.Metric
    keys: tuple[str, ...] = ()

    def result(self) -> Nest:
        """Computes the log again, from the metric's current state."""
        result = self.metric.result()
        for key in self.keys:
            result = result[key]
        return result


class MetricResults:
    """Records the results that a model's metrics return within this context.

    A result counts until the metric's state changes: what it returned before cannot be
    computed from the state after the step.
    """

    def __init__(self, model: keras.Model) -> None:
        self._metrics = list(model.metrics)
        # A model's `metrics` may leave some of its metrics out: a layer's has all.
        known = {id(each) for each in self._metrics}
        every = keras.Layer.metrics.fget(model)
        self._left_out = [each for each in every if id(each) not in known]
        self._returned: list[tuple[Any, LogSource, int]] = []

    def __enter__(self) -> "MetricResults":
        for metric in self._metrics:
            # An attribute of the object hides the method of its class. `vars` bypasses
            # Keras's `__setattr__`, which tracks what is assigned.
            vars(metric)["result"] = self._noting(metric, metric.result)
            for name in _CHANGES:
                change = getattr(metric, name)
                vars(metric)[name] = self._changing(metric, change)
        for metric in (*self._metrics, *self._left_out):
            vars(metric)["update_state"] = _updating(metric, metric.update_state)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for metric in self._metrics:
            for name in ("result", *_CHANGES):
                vars(metric).pop(name, None)
        for metric in self._left_out:
            vars(metric).pop("update_state", None)

    def source_of(self, log: Nest) -> LogSource | None:
        """Returns the metric that returned this very object, or None."""
        found = (source for value, source, _ in self._returned if value is log)
        return next(found, None)

    def _noting(
        self, metric: keras.Metric, compute: Callable[[], Nest]
    ) -> Callable[[], Nest]:
        def result() -> Nest:
            returned = compute()
            self._note(returned, LogSource(metric))
            return returned

        return result

    def _changing(
        self, metric: keras.Metric, change: Callable[..., object]
    ) -> Callable[..., object]:
        def changing(*args: object, **kwargs: object) -> object:
            # Each replica of a process has a thread of its own, and they take turns.
            here = threading.get_ident()
            self._returned = [
                each
                for each in self._returned
                if each[1].metric is not metric or each[2] != here
            ]
            return change(*args, **kwargs)

        return changing

    def _note(self, returned: Nest, source: LogSource) -> None:
        if isinstance(returned, Mapping):
            for key, value in returned.items():
                self._note(value, LogSource(source.metric, (*source.keys, key)))
        else:
            self._returned.append((returned, source, threading.get_ident()))


def _updating(
    metric: keras.Metric, update: Callable[..., object]
) -> Callable[..., object]:
    def updating(*args: object, **kwargs: object) -> object:
        with updating_metric(metric, args, kwargs):
            return update(*args, **kwargs)

    return updating


def flat_logs(logs: Mapping[str, Nest]) -> Logs:
    """Returns logs flattened as Keras shows them.

    >>> flat_logs({"loss": 1.0, "compile_metrics": {"mae": 2.0}})
    {'loss': 1.0, 'mae': 2.0}
    """
    flat: Logs = {}
    for name, value in logs.items():
        flat.update(flat_logs(value) if isinstance(value, Mapping) else {name: value})
    return flat
