"""One step of a model, traced once and added to the functions that workers run."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import GraphDef, Nest
from tfdist.cluster.liveness.step_error import remember
from tfdist.graph.used_inputs import without_unused_handles
from tfdist.parameter_server.exchange.narrow import is_narrowed
from tfdist.parameter_server.gate.gate import Gate, Turn
from tfdist.parameter_server.gate.order_reads_and_writes import order_reads_and_writes
from tfdist.parameter_server.seam.ps_strategy import PsStrategy
from tfdist.parameter_server.step_graph.compiling import with_compiled_calls
from tfdist.parameter_server.step_graph.copies import kept_and_seeded, without_seeds
from tfdist.parameter_server.step_graph.graph_fragment import GraphFragment
from tfdist.parameter_server.step_graph.messages import TaskMessage
from tfdist.parameter_server.step_graph.packing import PackedGraph, pack
from tfdist.placement.link_use import Traffic


class StepGraph:
    """A step, as a graph that can be added to others any number of times.

    Args:
        strategy: The strategy in whose scope it is traced.
        step: Takes tensors, and returns a structure of tensors.
        specs: The specs of the tensors.
        gate: The gate of the step, or None. The last inputs are its `slot`.
        size: How many steps it is.
        entered: Called after tracing; maps each ps to the name of the operation that
            must run before any use of its variables.
        is_narrow: Whether large weights travel to the worker in bfloat16.

    Attributes:
        function: The step as it was traced, a `ConcreteFunction`.
        homes: The device of each resource that it uses, by the name of its placeholder.
        not_copied: The types of its operations because of which a function may have it
            only once.
        seeded: The types of its operations that draw without the seed they were given.
        is_compiled: Whether XLA compiles what its worker computes; set before it is added.
    """

    def __init__(
        self,
        strategy: PsStrategy,
        step: Callable[..., Any],
        specs: Sequence[tf.TypeSpec],
        gate: Gate | None = None,
        size: int = 1,
        entered: Callable[[], Mapping[str, str]] = dict,
        is_narrow: bool = False,
    ) -> None:
        turns: list[Turn] = []

        if gate is not None:
            step = _with_turn(step, gate, size, turns)
            specs = [*specs, *gate.slot_specs]
        with strategy.scope():
            traced = tf.function(step, autograph=False)
            self.function = traced.get_concrete_function(*specs)
        graph = self.function.graph
        # Workers run copies, whose names say nothing of where the user wrote them.
        remember(graph)
        self.not_copied, self.seeded = kept_and_seeded(graph)
        self.homes = {
            inside.op.name: outside.device
            for outside, inside in graph.captures
            if outside.dtype == tf.resource
        }
        if gate is not None:
            slot = self.function.inputs[len(specs) - len(gate.slot_specs) : len(specs)]
            self.homes |= dict.fromkeys((each.op.name for each in slot), gate.device)
            # The last turn: TensorFlow traces a function again that creates variables.
            order_reads_and_writes(graph, self.homes, turns[-1], gate.device)
        self.is_compiled = False
        self._entered = entered()
        self._strategy = strategy
        self._narrow = self._large_weights() if is_narrow else set()

    def _large_weights(self) -> set[str]:
        """Returns the placeholders of the weights that can travel in bfloat16."""
        captures = self.function.graph.captures
        names = {id(outside): inside.op.name for outside, inside in captures}
        known = self._strategy.extended.placed.of_handles(
            outside for outside, _ in captures
        )
        return {
            names[id(each.handle)]
            for each, _ in known
            if each.is_weight and is_narrowed(each.dtype, each.shape)
        }

    def definition(self) -> GraphDef:
        """Returns a new `GraphDef` of it, which may be copied."""
        definition = self.function.graph.as_graph_def()
        without_unused_handles(definition, self.function.graph)
        _tf.add_functions(without_seeds(definition))
        return definition

    @functools.cached_property
    def _packed(self) -> PackedGraph:
        graph = self.function.graph
        seconds = self._strategy.extended.seconds_per_byte
        return pack(
            graph, self.definition(), self.homes, self._entered, seconds, self._narrow
        )

    @functools.cached_property
    def _fragment(self) -> GraphFragment:
        inputs = [each.name for each in self.function.inputs]
        definition = self._packed.definition
        if self.is_compiled:
            with_compiled_calls(definition, self.function.graph)
        return GraphFragment(definition, inputs)

    @property
    def messages(self) -> tuple[TaskMessage, ...]:
        """The messages between the worker and the ps in one step."""
        return self._packed.messages

    @property
    def traffic(self) -> Traffic:
        """The bytes of the messages, and the speed of the link."""
        return self._packed.traffic

    @property
    def size(self) -> int:
        """The number of its operations."""
        return self._fragment.size

    def add(self, tensors: Sequence[tf.Tensor], name: str) -> Nest:
        """Adds the step to the function being traced, and returns its result."""
        outputs = [each.name for each in self.function.outputs]
        given = [*tensors, *captures_of(self.function)]
        return structured(self.function, self._fragment.add(given, outputs, name))


def _with_turn(
    step: Callable[..., Any], gate: Gate, size: int, turns: list[Turn]
) -> Callable[..., Any]:
    """Returns a step with its turn, which is appended to `turns` when it is traced."""

    def with_turn(*tensors: tf.Tensor) -> Nest:
        width = len(tensors) - len(gate.slot_specs)
        batch, slot = tensors[:width], tensors[width:]
        result, turn = gate.around(lambda: step(*batch), slot, size)
        turns.append(turn)
        return result

    return with_turn


def captures_of(function: Any) -> list[tf.Tensor]:
    """Captures what a function has captured, for the function being traced."""
    graph = tf.compat.v1.get_default_graph()
    # An imported graph captures handles alone; this names their variables.
    for variable in function.graph.variables:
        graph.watch_variable(variable)
    return [graph.capture(each) for each in function.captured_inputs]


def structured(function: Any, outputs: Sequence[tf.Tensor]) -> Nest:
    """Returns the result of a function that has these outputs."""
    for each, traced in zip(outputs, function.outputs, strict=True):
        each.set_shape(traced.shape)
    structure = function.structured_outputs
    rest = iter(outputs)
    flat = [
        None if each is None else next(rest)
        for each in tf.nest.flatten(structure, expand_composites=True)
    ]
    return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)
