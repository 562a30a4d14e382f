"""One step of a model, traced once and added to the functions that workers run."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.liveness.step_error import remember
from tfdist.parameter_server.step_graph.packing import pack


class StepGraph:
    """A step, as a graph that can be added to others any number of times.

    Args:
        strategy: The strategy in whose scope it is traced.
        step: Takes tensors, and returns a structure of tensors.
        specs: The specs of the tensors.

    Attributes:
        function: The step as it was traced, a `ConcreteFunction`.
        messages: What the worker and the ps send each other in one step.
        size: The number of its operations.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        step: Callable[..., Any],
        specs: Sequence[tf.TypeSpec],
    ) -> None:
        with strategy.scope():
            traced = tf.function(step, autograph=False)
            self.function = traced.get_concrete_function(*specs)
        graph = self.function.graph
        remember(graph)
        homes = {
            inside.op.name: outside.device
            for outside, inside in graph.captures
            if outside.dtype == tf.resource
        }
        packed = pack(graph, homes)
        self.messages = packed.messages
        self.size = len(packed.definition.node)
        self._definition = packed.definition
        used = {each for node in packed.definition.node for each in node.input}
        self._used = {each.name for each in graph.inputs if each.op.name in used}

    def add(self, tensors: Sequence[tf.Tensor], name: str) -> Any:
        """Adds the step to the function being traced, and returns its result.

        Args:
            tensors: Its inputs.
            name: How the names of its operations begin.
        """
        function = self.function
        graph = tf.compat.v1.get_default_graph()
        for variable in function.graph.variables:
            graph.watch_variable(variable)
        captured = [graph.capture(each) for each in function.captured_inputs]
        given = dict(
            zip(
                (each.name for each in function.inputs),
                (*tensors, *captured),
                strict=True,
            )
        )
        outputs = [each.name for each in function.outputs]
        computed = [each for each in outputs if each not in given]
        results = tf.graph_util.import_graph_def(
            self._definition,
            {name: each for name, each in given.items() if name in self._used},
            computed,
            name=name,
        )
        given.update(zip(computed, results, strict=True))
        for each, traced in zip(outputs, function.outputs, strict=True):
            given[each].set_shape(traced.shape)
        structure = function.structured_outputs
        rest = iter(outputs)
        flat = [
            None if each is None else given[next(rest)]
            for each in tf.nest.flatten(structure, expand_composites=True)
        ]
        return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)
