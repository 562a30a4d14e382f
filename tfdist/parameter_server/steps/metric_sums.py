"""Metrics of a model after some number of whole steps, while steps write.

A step writes the variables of a metric one after the other, and they may be on several ps.
A reader could see a total that includes a step which the count does not. So each step
also adds all its changes to one vector, at one moment.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Logs
from tfdist._support.walks import reached
from tfdist.graph.tasks import calls_functions
from tfdist.keras.logs import WholeLogs
from tfdist.parameter_server.step_graph.graph_fragment import GraphFragment
from tfdist.variables.resources import Numbers
from tfdist.variables.variable import ParameterServerVariable

LARGEST_STATE = 10_000
"""The most numbers in all metrics of a model that steps send a second time."""

_SIGNS = {"AssignAddVariableOp": 1.0, "AssignSubVariableOp": -1.0}
_READS = ("ReadVariableOp", "VariableShape")


class MetricSums:
    """The variables of a model's metrics as one vector on a ps, which has whole steps alone.

    Cost: a vector to one ps per exchange, as long as the state of all metrics.
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
        # A message of one dtype is the cheapest, and gradients travel in the same one.
        is_float32 = all(each.dtype == "float32" for each in self._variables)
        self._dtype = tf.float32 if is_float32 else tf.float64
        self._sums: Numbers | None = None
        self._written = -1

    def add(self) -> None:
        """Adds the step's changes of the metrics, at the end of a traced step."""
        added = (
            [_added(each, self._dtype) for each in self._holders]
            if self._are_sums
            else []
        )
        if not added or any(each is None for each in added):
            self._are_sums = False
            return
        if self._sums is None:
            zeros = [0.0] * (1 + sum(self._sizes))
            with tf.init_scope():
                self._sums = Numbers(self._holders[0].device, zeros, self._dtype)
        # The first number counts the steps.
        self._sums.add(tf.concat([tf.ones([1], self._dtype), *added], axis=0))

    def whole(self, logs: Logs) -> WholeLogs:
        """Returns the logs of a step being traced, as if it had read the metrics at once."""
        graph = tf.compat.v1.get_default_graph()
        read = {
            op.outputs[0].name: i
            for i, each in enumerate(self._holders)
            for handle in _captured(graph, each)
            for op in handle.consumers()
            if op.type == "ReadVariableOp"
        }
        tensors = [tf.convert_to_tensor(each) for each in tf.nest.flatten(logs)]
        later = _later(graph, read)
        parts = [_between(each, later) for each in tensors]
        as_read = WholeLogs(logs, [False] * len(tensors), 0.0)
        if not any(parts):
            return as_read
        self.add()
        if self._sums is None or not self._are_sums:
            return as_read
        steps, *state = tf.split(self._sums.read(), [1, *self._sizes])
        given = {
            name: tf.cast(tf.reshape(state[i], each.shape), each.dtype)
            for name, i in read.items()
            for each in (self._holders[i],)
        }
        values = [
            _again(value, part, given)
            for value, part in zip(tensors, parts, strict=True)
        ]
        whole = tf.nest.pack_sequence_as(logs, values)
        return WholeLogs(whole, [bool(each) for each in parts], tf.squeeze(steps))

    def begin(self, is_read: bool) -> bool:
        """Begins anew if this process has written the metrics, as it does to reset them.

        Not if nobody reads them within the epoch. Returns whether it has.
        """
        written = sum(getattr(each, "writes_here", 0) for each in self._holders)
        if not is_read or written == self._written:
            return False
        self._written = written
        if self._are_sums and self._sums is not None:
            self._join()
            state = [each.numpy().reshape(-1) for each in self._holders]
            self._sums.set(np.concatenate([[0.0], *state]))
            # Before a step adds to it.
            self._sums.read().numpy()
        return True

    def results(self) -> Logs | None:
        """Returns the results of the metrics, or None before a step has ended."""
        if self._sums is None or not self._are_sums:
            return None
        steps, *values = np.split(
            self._sums.read().numpy(), np.cumsum([1, *self._sizes[:-1]])
        )
        if not steps:
            return None
        # Shaped by NumPy: TensorFlow tells all tasks of an operation that is new to it, and a
        # stopped worker does not answer.
        state = [
            (each, tf.constant(value.reshape(each.shape).astype(_numpy_dtype(each))))
            for each, value in zip(self._variables, values, strict=True)
        ]
        with keras.StatelessScope(state_mapping=state):
            results: Logs = self._model.get_metrics_result()
        return results


def _numpy_dtype(variable: keras.Variable) -> Any:
    return tf.as_dtype(variable.dtype).as_numpy_dtype


def _captured(graph: tf.Graph, variable: keras.Variable) -> list[tf.Tensor]:
    """Returns the handle of a variable in the graph of a step; none if it is not used."""
    handle = getattr(variable, "handle", None)
    return [inside for outside, inside in graph.captures if outside is handle]


def _added(variable: keras.Variable, dtype: tf.DType) -> tf.Tensor | None:
    """Returns, as a vector, what the step being traced adds to a variable.

    None if it does anything else, or in a function, a branch or a loop of its own.
    """
    handles = _captured(tf.compat.v1.get_default_graph(), variable)
    total = tf.zeros([variable.shape.num_elements()], dtype)
    for op in (op for handle in handles for op in handle.consumers()):
        if op.type in _SIGNS:
            change = tf.reshape(tf.cast(op.inputs[1], dtype), [-1])
            total += _SIGNS[op.type] * change
        elif op.type not in _READS:
            return None
    return total


def _later(graph: tf.Graph, given: Collection[str]) -> set[str]:
    """Returns the operations that compute anything from tensors of these names."""
    later: set[str] = set()
    for op in graph.get_operations():
        if any(each.name in given or each.op.name in later for each in op.inputs):
            later.add(op.name)
    return later


def _between(value: tf.Tensor, later: Collection[str]) -> set[str]:
    """Returns the operations among these that compute a value."""

    def computed_from(op: tf.Operation) -> list[tf.Operation]:
        return [each.op for each in op.inputs if each.op.name in later]

    start = [value.op] if value.op.name in later else []
    return {op.name for op in reached(start, computed_from)}


def _again(
    value: tf.Tensor, part: Collection[str], given: Mapping[str, tf.Tensor]
) -> tf.Tensor:
    """Returns a value computed anew by some operations, from what is given.

    The value itself where that would have an effect once more.
    """
    ops = [value.graph.get_operation_by_name(name) for name in part]
    if not ops or any(op.op_def.is_stateful or calls_functions(op) for op in ops):
        return value
    definition = tf.compat.v1.GraphDef()
    for op in ops:
        node = definition.node.add()
        node.CopyFrom(op.node_def)
        node.attr.pop("_class", None)
        node.input[:] = [each for each in node.input if not each.startswith("^")]
    inputs = {e.name: e for op in ops for e in op.inputs if e.op.name not in part}
    tensors = [given.get(name, each) for name, each in inputs.items()]
    fragment = GraphFragment(definition, list(inputs))
    return fragment.add(tensors, [value.name], "whole")[0]
