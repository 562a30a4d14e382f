"""Traced functions, and the operations of their graphs."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)

from tfdist._support.types import ConcreteFunction

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


def clone_of(function: ConcreteFunction, python_function: Callable[..., Any]) -> Any:
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

    def capture_call_time_value(graph: Any, *args: Any, **kwargs: Any) -> Any:
        with graph.outer_graph.as_default():
            return graph.outer_graph.capture_call_time_value(*args, **kwargs)

    for branch in _BRANCHES:
        branch.capture_call_time_value = capture_call_time_value


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
    """Returns True if XLA has to compile the function that an operation calls."""
    value = call.node_def.attr.get("_XlaMustCompile")
    return value is not None and value.b


def has_custom_gradient(op: tf.Operation) -> bool:
    """Returns True if `tf.custom_gradient` gave an operation its gradient."""
    value = op.node_def.attr.get("_gradient_op_type")
    return value is not None and value.s.startswith(b"CustomGradient")


def graphs_called(op: tf.Operation) -> Iterator[Any]:
    """Yields the `FuncGraph` of each function that a call, branch or loop calls."""
    if op.type.endswith(("PartitionedCall", "If", "Case", "While")):
        for value in op.node_def.attr.values():
            for called in [value.func, *value.list.func]:
                function = op.graph._get_function(called.name) if called.name else None
                if function is not None:
                    yield function.graph


def graphs_being_traced() -> Iterator[tf.Graph]:
    """Yields the graph of the function being traced, and those that it is part of."""
    graph = tf.compat.v1.get_default_graph()
    while hasattr(graph, "outer_graph"):
        yield graph
        graph = graph.outer_graph


def arguments_of(op: tf.Operation) -> list[tf.Tensor]:
    """Returns the arguments that a call, branch or loop passes to its functions."""
    # The first input of a branch chooses it, and is not given to it.
    return list(op.inputs[op.type.endswith(("If", "Case")) :])


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
