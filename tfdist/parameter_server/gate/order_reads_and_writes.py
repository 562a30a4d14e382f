"""Orders the reads and writes of a traced step after its turns to start and to write."""

from collections.abc import Iterable, Iterator, Mapping

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import NodeDef
from tfdist._support.walks import reached
from tfdist.graph.functions import all_called, function_attrs, library_of
from tfdist.graph.tasks import (
    WORKER,
    calls_functions,
    task_at,
    tasks_of,
)
from tfdist.graph.used_inputs import (
    sources_of,
    used_inputs,
)
from tfdist.parameter_server.gate.gate import Turn

# Operations that read a variable or a table and do not write. All others may.
_READS = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
        "LookupTableFindV2",
        "LookupTableSizeV2",
    }
)


def order_reads_and_writes(
    graph: tf.Graph, homes: Mapping[str, str], turn: Turn, device: str
) -> None:
    """Adds control edges: reads wait for the start, and writes for their turn.

    If nobody ever waits, there are none between tasks, which would cost messages.

    What a step writes before it has computed its gradients, such as a moving average, is
    written with them. Only where something is computed from what it has written does it
    ask for its turn before that.
    """
    tasks = tasks_of(graph, homes)
    touching = [op for op in graph.get_operations() if _touches_ps(op, tasks)]
    touching = [op for op in touching if not turn.has(op)]
    if turn.has_computed is None:
        touching = [op for op in touching if tasks[op.name] == task_at(device)]
    writes = _writes(graph, touching)
    if turn.has_computed is not None:
        ready = dict.fromkeys(_gradients(writes, tasks, turn, device))
        _tf.add_control_inputs(turn.has_computed, ready)
    if turn.pulled is not None and turn.pushed is not None:
        computed = _gradients(writes, tasks, turn, device)
        gradients = dict.fromkeys(op for op in computed if tasks[op.name] == WORKER)
        needed = reached(gradients, lambda op: [each.op for each in op.inputs])
        reads = [op for op in touching if op in needed and op not in writes]
        _tf.add_control_inputs(turn.pulled.op, reads)
        # A busy worker could note the time only after it has computed.
        for op in _computing(reads, tasks, turn):
            _tf.add_control_inputs(op, [turn.pulled.op])
        _tf.add_control_inputs(turn.pushed.op, gradients)
    _tf.add_control_inputs(turn.has_written, writes)
    for op in touching:
        waits_for = turn.may_write if op in writes else turn.may_start
        if waits_for is not None:
            _tf.add_control_inputs(op, [waits_for])


def _gradients(
    writes: Iterable[tf.Operation], tasks: Mapping[str, str], turn: Turn, device: str
) -> Iterator[tf.Operation]:
    """Yields the operations to compute before the step asks for its turn to write."""
    written = reached(writes, _tf.waiting_for)
    near = (WORKER, task_at(device))
    here = _inputs([op for op in writes if tasks[op.name] == task_at(device)])
    ready = [op for op in here if tasks[op.name] in near]
    # Nothing is written there. What others write is ready when the worker has computed
    # it.
    if not ready:
        ready = [op for op in _inputs(writes) if tasks[op.name] == WORKER]
    # To wait, before a write, for what depends on it would be a circle.
    yield from (op for op in ready if op not in written and not turn.has(op))


def _computing(
    reads: list[tf.Operation], tasks: Mapping[str, str], turn: Turn
) -> list[tf.Operation]:
    """Returns where the worker first uses what was read, but for what reads need."""
    # An edge from what waits for them to what they need would be a circle.
    needed = sources_of(reads)
    found: list[tf.Operation] = []
    pending, seen = list(reads), set(reads)
    while pending:
        for op in _tf.waiting_for(pending.pop()):
            if op in seen or op in needed or turn.has(op):
                continue
            seen.add(op)
            (found if tasks[op.name] == WORKER else pending).append(op)
    return found


def _touches_ps(op: tf.Operation, tasks: Mapping[str, str]) -> bool:
    return any(
        each.dtype == tf.resource and tasks[each.op.name] != WORKER
        for each in used_inputs(op)
    )


def _writes(graph: tf.Graph, touching: list[tf.Operation]) -> dict[tf.Operation, None]:
    """Returns the operations that write, in their order.

    A call is a write if anything that it calls is, at any depth. Cost: linear in the graph.
    """
    library = library_of(graph.as_graph_def())
    writing = {
        name
        for name, function in library.items()
        if any(_may_write(graph, node) for node in function.node_def)
    }

    def writes(op: tf.Operation) -> bool:
        if not calls_functions(op):
            return op.type not in _READS
        return not writing.isdisjoint(all_called([op.node_def], library))

    return dict.fromkeys(filter(writes, touching))


def _may_write(graph: tf.Graph, node: NodeDef) -> bool:
    if node.op in _READS or any(True for _ in function_attrs(node)):
        return False
    arguments = graph.op_def_for_type(node.op).input_arg
    return any(each.type == tf.resource.as_datatype_enum for each in arguments)


def _inputs(operations: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    for op in operations:
        for each in op.inputs:
            if each.dtype != tf.resource and each.op.type != "Const":
                yield each.op
