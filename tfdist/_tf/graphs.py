"""Traced functions, and the operations of their graphs."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.ps_values import DistributedTable
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)

_BRANCHES = (CondBranchFuncGraph, WhileBodyFuncGraph, WhileCondFuncGraph)


def keep_functions() -> None:
    """Has this process delete no more functions, on its servers or here.

    At its end nobody needs that. Servers may have ended before, and TensorFlow logs an
    error for each function and each of them.
    """
    context.context().remove_function = lambda name: None


def scratch_graph(name: str) -> tf.Graph:
    """Returns a graph to trace into and throw away.

    Unlike `tf.Graph`, it may capture eager tensors of its surroundings.
    """
    return tf.__internal__.FuncGraph(name)


def clone_of(function: Any, python_function: Callable[..., Any]) -> Any:
    """Returns a `tf.function` of another Python function, with the same options."""
    return function._clone(python_function)


def retrace_where_differs(key: Callable[[], Any]) -> None:
    """Has each `tf.function` keep the traces apart that are made under different keys.

    A key of None is where a function's traces are shared.
    """
    make = function_context.make_function_context

    @functools.wraps(make)
    def make_function_context(scope_type: Any = None) -> Any:
        made, current = make(scope_type), key()
        if current is None:
            return made
        return made._replace(scope_type=(made.scope_type, current))

    function_context.make_function_context = make_function_context


def look_up_within_branches() -> None:
    """Lets branches and loops look up in a table of the scope of parameter servers.

    Each task has such a table of its own. A function is given that of its task when it is
    called, as TensorFlow notes on its graph; on the graph of a branch nobody would read it.
    """
    given = DistributedTable.resource_handle
    if getattr(given.fget, "is_of_function", False):
        return

    def resource_handle(table: Any) -> Any:
        with _outside_of_branches():
            return given.fget(table)

    resource_handle.is_of_function = True  # type: ignore[attr-defined]
    DistributedTable.resource_handle = property(resource_handle)


@contextlib.contextmanager
def _outside_of_branches() -> Iterator[None]:
    """Enters the graph of the function whose branch or loop is being traced."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or not isinstance(graph, _BRANCHES):
        yield
        return
    while isinstance(graph, _BRANCHES):
        graph = graph.outer_graph
    with graph.as_default():
        yield


def function(python_function: Callable[..., Any], signature: Any) -> Any:
    """Returns a `tf.function` of this signature, and lets it be one of many."""
    # TensorFlow counts traces by the code object of a Python function, and ours share
    # one among all models; a partial has none, and is counted by itself.
    return tf.function(functools.partial(python_function), input_signature=signature)


def function_graph(call: tf.Operation, name: str = "f") -> Any:
    """Returns the `FuncGraph` of a function that an operation calls, or None.

    `name` is that of the attribute: "f" of a call, "body" and "cond" of a loop.
    """
    function = call.graph._get_function(call.get_attr(name).name)
    return getattr(function, "graph", None)


def is_compiled(call: tf.Operation) -> bool:
    """Returns whether XLA has to compile the function that an operation calls."""
    value = call.node_def.attr.get("_XlaMustCompile")
    return value is not None and value.b


def has_custom_gradient(op: tf.Operation) -> bool:
    """Returns whether `tf.custom_gradient` gave an operation its gradient."""
    value = op.node_def.attr.get("_gradient_op_type")
    return value is not None and value.s.startswith(b"CustomGradient")


def inputs_of_functions(op: tf.Operation, tensor: tf.Tensor) -> Iterator[tf.Tensor]:
    """Returns what functions that an operation calls have in place of one of its inputs."""
    for graph, given in functions_of(op):
        for inner, each in zip(graph.inputs, given, strict=False):
            if each is tensor:
                yield inner


def functions_of(op: tf.Operation) -> Iterator[tuple[Any, list[tf.Tensor]]]:
    """Returns the graphs of functions that an operation calls, and what it gives them."""
    # The first input of a condition chooses the branch, and is not given to it.
    skipped = 1 if op.type in ("If", "StatelessIf", "Case", "StatelessCase") else 0
    for value in op.node_def.attr.values():
        for called in [value.func, *value.list.func]:
            function = op.graph._get_function(called.name) if called.name else None
            if function is not None:
                yield function.graph, list(op.inputs)[skipped:]


def add_functions(definitions: Iterable[Any]) -> None:
    """Lets graphs call functions that no trace has made: a `FunctionDef` each."""
    for each in definitions:
        context.context().add_function_def(each)


def add_control_inputs(op: tf.Operation, others: Iterable[tf.Operation]) -> None:
    """Has an operation of a graph wait for others."""
    op._add_control_inputs(list(others))


def waiting_for(op: tf.Operation) -> list[tf.Operation]:
    """Returns the operations that wait for one, or use what it has computed."""
    consumers = [each for output in op.outputs for each in output.consumers()]
    return [*consumers, *op._control_outputs]
