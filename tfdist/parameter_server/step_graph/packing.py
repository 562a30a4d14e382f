"""Rewrites the graph of a step so that a message carries several tensors."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from tfdist._support.types import GraphDef, NodeDef
from tfdist.graph.tasks import (
    WORKER,
    device_for,
    device_of,
    tasks_of,
    waits_of,
)
from tfdist.parameter_server.step_graph import messages, wire
from tfdist.parameter_server.step_graph.definitions import Builder, reference, rewire
from tfdist.parameter_server.step_graph.messages import Node, Output, TaskMessage
from tfdist.placement.link_use import Traffic

LARGEST_PACKED = 2**20
"""The size, in bytes, from which a tensor travels alone.

Packing and splitting it costs 0.05 ms of CPU time for 1 MiB and 0.17 ms for 2 MiB, and a
message costs 0.17 ms. Beyond, small tensors would also wait for a large one.
"""

_LARGEST_CONSTANT = 2**10


@dataclass(frozen=True)
class PackedGraph:
    """The graph of one step, with its messages packed.

    Attributes:
        definition: The `GraphDef`, without the placeholders of the inputs.
        messages: The messages of the tasks in one step.
        traffic: How many bytes that is, of tensors of known shapes.
    """

    definition: GraphDef
    messages: tuple[TaskMessage, ...]
    traffic: Traffic


def pack(
    graph: tf.Graph,
    definition: GraphDef,
    homes: Mapping[str, str],
    entered: Mapping[str, str] | None = None,
    seconds_per_byte: float = 0.0,
    narrow: Collection[str] = (),
) -> PackedGraph:
    """Packs the messages between the tasks of a step.

    Cost: two copies of each packed tensor, in exchange for one message per tensor. Where
    large messages take turns, each but the first of them costs a signal.
    """
    packing = _Packing(graph, definition, homes, entered or {}, narrow)
    return packing.packed(seconds_per_byte)


class _Packing:
    """The graph while it is rewritten.

    `_nodes` says how it is wired, and `_definitions` has the same in TensorFlow's form.
    """

    def __init__(
        self,
        graph: tf.Graph,
        definition: GraphDef,
        homes: Mapping[str, str],
        entered: Mapping[str, str],
        narrow: Collection[str],
    ) -> None:
        self._graph = graph
        self._narrow = narrow
        self._waits = waits_of(graph, homes, entered)
        self._tasks = tasks_of(graph, homes)
        self._graph_def = definition
        self._definitions = {each.name: each for each in self._graph_def.node}
        self._relayed: dict[str, Output] = {}
        # A set, since each operation is looked up in it.
        self._roots = {tensor.op.name for tensor in graph.outputs}
        self._roots |= {op.name for op in graph.control_outputs}
        nodes = map(self._node, graph.get_operations())
        self._nodes = messages.needed(nodes, self._roots)

    def packed(self, seconds_per_byte: float) -> PackedGraph:
        self._copy_constants()
        self._relay()
        sent = [
            part
            for message in messages.messages(self._nodes)
            for part in self._parts(message, seconds_per_byte)
        ]
        seconds = [seconds_per_byte * self._bytes(each) for each in sent]
        waits = messages.in_turn(WORKER, sent, seconds, messages.in_order(self._nodes))
        # Also what is only waited for: there must be an operation that receives it.
        takes_turns = {*waits, *waits.values()}
        arrived: dict[int, str] = {}
        made: list[NodeDef] = []
        # The replacements of inputs, by task.
        replaced: dict[str, dict[str, str]] = defaultdict(dict)
        # Parts that wait come after the parts that they wait for.
        for i in (*(i for i in range(len(sent)) if i not in waits), *waits):
            part = sent[i]
            several = len(part.outputs) + len(part.signals) > 1
            is_narrow = any(map(self._is_narrow, part.outputs))
            if several or is_narrow or i in takes_turns:
                before = [arrived[waits[i]]] if i in waits else []
                arrived[i] = self._pack(i, part, before, made, replaced)
        for node in self._nodes:
            rewire(self._definitions[node.name], replaced[node.task])
        # A `GraphFragment` is given these; their placeholders would be fed by nobody.
        given = {tensor.op.name for tensor in self._graph.inputs}
        kept = [self._definitions[n.name] for n in self._nodes if n.name not in given]
        del self._graph_def.node[:]
        self._graph_def.node.extend([*kept, *made])
        traffic = Traffic(
            pulled=sum(self._bytes(each) for each in sent if each.receiver == WORKER),
            pushed=sum(self._bytes(each) for each in sent if each.sender == WORKER),
            segments=max(len(takes_turns), 1),
            seconds_per_byte=seconds_per_byte,
        )
        return PackedGraph(self._graph_def, tuple(sent), traffic)

    def _bytes(self, message: TaskMessage) -> int:
        """Returns how many bytes a message has at least: those of known shapes."""
        return sum(map(self._bytes_of, message.outputs))

    def _bytes_of(self, output: Output) -> int:
        tensor = self._tensor(output)
        dtype = tf.bfloat16 if self._is_narrow(output) else tensor.dtype
        return (tensor.shape.num_elements() or 0) * dtype.size

    def _node(self, op: tf.Operation) -> Node:
        # A handle is not sent: what uses it runs where the resource is.
        inputs = [
            (each.op.name, each.value_index)
            for each in op.inputs
            if each.dtype != tf.resource
        ]
        task = self._tasks[op.name]
        definition = self._definitions[op.name]
        if op.type != "Placeholder":
            definition.device = device_for(task, op.device)
            # Some name a placeholder, which is replaced; the device says the same.
            definition.attr.pop("_class", None)
        # TensorFlow has each result wait for all updates. The function does that anyway,
        # and here it would take a message from each ps.
        waits = op.name not in self._roots or op.type != "Identity"
        after = [each.name for each in op.control_inputs if waits]
        if not waits:
            rewire(
                definition, {each: "" for each in definition.input if each[0] == "^"}
            )
        entered = [each for each in self._waits.get(op.name, ()) if each not in after]
        definition.input.extend(f"^{each}" for each in entered)
        after += entered
        # Placeholders of handles have no inputs of their own, and must not be pruned.
        handles = [each.op.name for each in op.inputs if each.dtype == tf.resource]
        return Node(op.name, task, tuple(inputs), tuple(after), tuple(handles))

    def _tensor(self, output: Output) -> tf.Tensor:
        name, index = self._relayed.get(output[0], output)
        return self._graph.get_tensor_by_name(f"{name}:{index}")

    def _copy_constants(self) -> None:
        """Copies constants to each task that uses them."""
        copies: dict[tuple[str, Output], Node] = {}
        nodes = []
        for node in self._nodes:
            inputs = []
            for each in node.inputs:
                if self._tasks[each[0]] != node.task:
                    copy = copies.get((node.task, each)) or self._copy(each, node.task)
                    if copy is not None:
                        copies[node.task, each] = copy
                        each = (copy.name, 0)
                inputs.append(each)
            nodes.append(self._with_inputs(node, tuple(inputs)))
        self._nodes = messages.needed([*copies.values(), *nodes], self._roots)

    def _copy(self, output: Output, task: str) -> Node | None:
        tensor = self._tensor(output)
        elements = tensor.shape.num_elements()
        if elements is None or elements > _LARGEST_CONSTANT:
            return None
        value = tf.get_static_value(tensor)
        if value is None:
            return None
        name = f"constant_{task.replace(':', '_')}/{output[0]}_{output[1]}"
        builder = Builder(name, device_of(task))
        # A constant that another task uses would be a message in each step.
        builder.constant(value, tensor.dtype)
        (definition,) = builder.made
        definition.name = name
        self._definitions[name] = definition
        self._tasks[name] = task
        return Node(name, task)

    def _relay(self) -> None:
        before = {node.name: node for node in self._nodes}
        self._nodes = messages.via(WORKER, self._nodes)
        for node in self._nodes:
            if node.name not in before:
                (source,) = node.inputs
                self._relayed[node.name] = source
                builder = Builder(node.name, device_of(node.task))
                builder.add(
                    "Identity",
                    [reference(source)],
                    node.name,
                    T=self._tensor(source).dtype,
                )
                (self._definitions[node.name],) = builder.made
        self._nodes = [
            self._with_inputs(before.get(node.name, node), node.inputs)
            for node in self._nodes
        ]

    def _with_inputs(self, node: Node, inputs: tuple[Output, ...]) -> Node:
        changed = {
            reference(old): reference(new)
            for old, new in zip(node.inputs, inputs, strict=True)
            if old != new
        }
        if changed:
            rewire(self._definitions[node.name], changed)
        return replace(node, inputs=inputs)

    def _parts(
        self, message: TaskMessage, seconds_per_byte: float
    ) -> Iterator[TaskMessage]:
        """Yields the parts that replace a message: large tensors travel alone.

        The last of the tensors that take turns takes the small ones along.
        """
        together = dict.fromkeys(filter(self._is_packed, message.outputs))
        slow = [
            each
            for each in together
            if seconds_per_byte * self._bytes_of(each) >= messages.LEAST_IN_TURN
        ]
        alone = set(slow[:-1])
        together = dict.fromkeys(each for each in together if each not in alone)
        for each in message.outputs:
            if each not in together:
                yield replace(message, outputs=(each,), signals=())
        if together or message.signals:
            yield replace(message, outputs=tuple(together))

    def _pack(
        self,
        index: int,
        message: TaskMessage,
        before: Sequence[str],
        made: list[NodeDef],
        replaced: dict[str, dict[str, str]],
    ) -> str:
        """Packs a message that waits for `before`; returns the operation that receives it.

        New nodes are added to `made`, and replacements of inputs to `replaced`.
        """
        sender = Builder(f"message_{index}/send", device_of(message.sender))
        receiver = Builder(f"message_{index}/receive", device_of(message.receiver))
        here = replaced[message.receiver]
        waits = [*message.signals, *before]
        parts = [self._part(each, sender) for each in message.outputs]
        if len(parts) == 1:
            # A single part may have any type and shape, even one that cannot be packed.
            (part,) = parts
            inputs = [part.reference, *(f"^{each}" for each in waits)]
            sent = sender.add("Identity", inputs, T=part.dtype)
            received = [receiver.add("Identity", [sent], T=part.dtype)]
        elif parts:
            vector = wire.send(parts, sender, waits)
            received = wire.receive(vector, parts, receiver)
        else:
            received = [sender.add("NoOp", [f"^{each}" for each in waits])]
        arrived = received[0].partition(":")[0]
        for output, part, tensor in zip(message.outputs, parts, received, strict=False):
            dtype = self._tensor(output).dtype
            if part.dtype != dtype:
                tensor = receiver.add("Cast", [tensor], SrcT=part.dtype, DstT=dtype)
            here[reference(output)] = tensor
        here.update({f"^{each}": f"^{arrived}" for each in message.signals})
        made += [*sender.made, *receiver.made]
        return arrived

    def _part(self, output: Output, sender: Builder) -> wire.Part:
        """Returns the tensor that travels for an output, a weight in bfloat16."""
        tensor, sent = self._tensor(output), reference(output)
        if not self._is_narrow(output):
            return wire.Part(sent, tensor.dtype, tensor.shape)
        sent = sender.add("Cast", [sent], SrcT=tensor.dtype, DstT=tf.bfloat16)
        return wire.Part(sent, tf.bfloat16, tensor.shape)

    def _is_narrow(self, output: Output) -> bool:
        """Returns True if it is what a worker reads of a weight, and passes to nobody."""
        if not self._narrow or output in self._relayed.values():
            return False
        op = self._tensor(output).op
        while op.type == "Identity":
            op = op.inputs[0].op
        reads = op.type == "ReadVariableOp" and self._tasks[op.name] != WORKER
        return reads and op.inputs[0].op.name in self._narrow

    def _is_packed(self, output: Output) -> bool:
        tensor = self._tensor(output)
        size = (tensor.shape.num_elements() or 0) * tensor.dtype.size
        return wire.fits(tensor.dtype, tensor.shape) and size <= LARGEST_PACKED
