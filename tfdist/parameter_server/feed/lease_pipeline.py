"""Graphs that read leases, as a part of the functions that a worker runs."""

from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import GraphDef
from tfdist.data import chief_only_reasons
from tfdist.data.auto_leases import MAX_CONSTANT_BYTES
from tfdist.graph.functions import calls_python, digest, renamed
from tfdist.parameter_server.step_graph.copies import without_seeds
from tfdist.parameter_server.step_graph.graph_fragment import GraphFragment


class LeasePipeline:
    """A graph that reads a lease on a worker, for any number of functions."""

    def __init__(self, function: Any, definition: GraphDef, key: str) -> None:
        self.key = key
        self._outputs = [each.name for each in function.outputs]
        self._specs = [tf.TensorSpec.from_tensor(each) for each in function.outputs]
        inputs = _inputs_of(function)
        # A copy with its seed would draw the same numbers in each function, as a step
        # would.
        without_seeds(definition)
        # Use new names. TensorFlow deletes functions of a dataset with it, and has
        # never told the workers of a dataset made before the process joined them.
        _tf.add_functions(renamed(definition, "by_lease"))
        _leave_out(definition, inputs)
        self._fragment = GraphFragment(definition, [each.name for each in inputs])

    def read(self, lease: list[tf.Tensor]) -> list[tf.Tensor]:
        """Reads a batch, in the function being traced, and returns its tensors."""
        tensors = self._fragment.add(lease, self._outputs, "lease")
        for each, spec in zip(tensors, self._specs, strict=True):
            each.set_shape(spec.shape)
        return tensors


def traced(read: Any, lease_specs: Any) -> tuple[Any, Any, str]:
    """Traces the reader of a lease: the arguments of a `LeasePipeline`.

    Raises:
        OnlyTheChiefReads: If workers cannot run it.
    """
    function = tf.function(read, autograph=False).get_concrete_function(*lease_specs)
    definition = function.graph.as_graph_def()
    _check(function, definition)
    inputs, values = _inputs_of(function), function.captured_inputs
    _keep(definition, function.inputs[len(inputs) :], values)
    return function, definition, digest(definition)


def _inputs_of(function: Any) -> list[tf.Tensor]:
    """Returns the inputs of a function without those for its captures."""
    return function.inputs[: len(function.inputs) - len(function.captured_inputs)]


def _check(function: Any, definition: GraphDef) -> None:
    """Checks that workers can run a function.

    Raises:
        OnlyTheChiefReads: If they cannot.
    """
    if calls_python(definition):
        raise chief_only_reasons.calls_python()
    captured = [outside for outside, _ in function.graph.captures]
    if any(each.dtype in (tf.resource, tf.variant) for each in captured):
        raise chief_only_reasons.uses_resource()
    size = sum(each.dtype.size * each.shape.num_elements() for each in captured)
    if size > MAX_CONSTANT_BYTES:
        raise chief_only_reasons.large(size, MAX_CONSTANT_BYTES)


def _keep(
    definition: GraphDef, inside: list[tf.Tensor], values: list[tf.Tensor]
) -> None:
    """Makes constants of the tensors that a function has captured."""
    kept = {each.op.name: value for each, value in zip(inside, values, strict=True)}
    for node in definition.node:
        if node.name in kept:
            value = kept[node.name]
            node.op = "Const"
            node.ClearField("attr")
            node.attr["dtype"].type = value.dtype.as_datatype_enum
            proto = tf.make_tensor_proto(value.numpy(), value.dtype)
            node.attr["value"].tensor.CopyFrom(proto)


def _leave_out(definition: GraphDef, inputs: list[tf.Tensor]) -> None:
    names = {each.op.name for each in inputs}
    rest = [node for node in definition.node if node.name not in names]
    del definition.node[:]
    definition.node.extend(rest)
