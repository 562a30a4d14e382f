"""What the metrics of a model are after some number of whole steps, while steps write.

A step writes the variables of a metric one after the other, and they may be on several ps.
Read meanwhile, a total may have a step that its count does not have. So each step adds all
that it adds to them to one vector as well, at one moment.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.parameter_server.resources import Numbers
from tfdist.variables.variable import ParameterServerVariable

LARGEST_STATE = 10_000
"""The most numbers in all metrics of a model that steps send a second time."""

_SIGNS = {"AssignAddVariableOp": 1.0, "AssignSubVariableOp": -1.0}
_READS = ("ReadVariableOp", "VariableShape")


class MetricSums:
    """The sums of what steps add to the metrics of a model, on a ps.

    Cost: a vector of float64 to one ps per exchange, as long as the state of all metrics.

    Args:
        model: The Keras model, whose metrics are built.
        join: Waits for the steps that are under way.
    """

    def __init__(self, model: keras.Model, join: Callable[[], None]) -> None:
        self._model = model
        self._join = join
        self._variables = model.metrics_variables
        self._holders = [_tf.value_of(each) for each in self._variables]
        self._sizes = [int(np.prod(each.shape)) for each in self._variables]
        # Whether a step adds to all of them, and does nothing else with them.
        self._are_sums = sum(self._sizes) <= LARGEST_STATE and all(
            isinstance(each, ParameterServerVariable) for each in self._holders
        )
        self._sums: Numbers | None = None
        self._before: list[np.ndarray] | None = None
        self._written = -1

    def add(self) -> None:
        """Adds, at the end of a step that is traced, what it has added to the metrics."""
        added = [_added(each) for each in self._holders] if self._are_sums else []
        if not added or any(each is None for each in added):
            self._are_sums = False
            return
        if self._sums is None:
            zeros = [0.0] * (1 + sum(self._sizes))
            with tf.init_scope():
                self._sums = Numbers(self._holders[0].device, zeros, tf.float64)
        self._sums.add(tf.concat([tf.ones([1], tf.float64), *added], axis=0))

    def begin(self, is_read: bool) -> bool:
        """Begins anew if this process has written the metrics, as it does to reset them.

        Args:
            is_read: Whether anybody will read them within the epoch.

        Returns:
            Whether it has begun anew.
        """
        written = sum(getattr(each, "writes_here", 0) for each in self._holders)
        if not is_read or written == self._written:
            return False
        self._written, self._before = written, None
        if self._are_sums and self._sums is not None:
            self._join()
            self._sums.set([0.0] * self._sums.size)
            # Once it has been set.
            self._sums.read().numpy()
            self._before = [each.numpy() for each in self._holders]
        return True

    def results(self) -> dict[str, Any] | None:
        """Returns the results of the metrics, or None before a step has ended."""
        if self._before is None or self._sums is None or not self._are_sums:
            return None
        steps, *sums = np.split(
            self._sums.read().numpy(), np.cumsum([1, *self._sizes[:-1]])
        )
        if not steps:
            return None
        state = [
            (variable, (before + added.reshape(before.shape)).astype(before.dtype))
            for variable, before, added in zip(
                self._variables, self._before, sums, strict=True
            )
        ]
        with keras.StatelessScope(state_mapping=state):
            results: dict[str, Any] = self._model.get_metrics_result()
        return results


def _added(variable: Any) -> tf.Tensor | None:
    """Returns, as a vector of float64, what the step being traced adds to a variable.

    None if it does anything else, or in a function, a branch or a loop of its own.
    """
    graph = tf.compat.v1.get_default_graph()
    handles = [
        inside for outside, inside in graph.captures if outside is variable.handle
    ]
    total = tf.zeros([variable.shape.num_elements()], tf.float64)
    for op in (op for handle in handles for op in handle.consumers()):
        if op.type in _SIGNS:
            change = tf.reshape(tf.cast(op.inputs[1], tf.float64), [-1])
            total += _SIGNS[op.type] * change
        elif op.type not in _READS:
            return None
    return total
