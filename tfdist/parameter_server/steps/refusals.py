"""Checks for models that asynchronous workers cannot train correctly.

Each raises an error before the first step, with the reason and an alternative.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.authors import Author, made_in
from tfdist._support.errors import RefusalError
from tfdist.consistency.asynchronous import Asynchronous
from tfdist.consistency.bounded_staleness import BoundedStaleness
from tfdist.graph.draws import RANDOM
from tfdist.graph.functions import all_nodes
from tfdist.keras import captures, refused
from tfdist.keras.graph import outermost
from tfdist.keras.optimizers import optimizers_of
from tfdist.parameter_server.exchange.policies import keeps_values
from tfdist.parameter_server.seam.ps_strategy import PsStrategy
from tfdist.parameter_server.steps.kept_gradients import keeping_gradients
from tfdist.parameter_server.steps.mixed_writes import (
    is_added_to_and_set,
    is_set_at_a_count,
)
from tfdist.parameter_server.steps.sent_functions import is_checked_already
from tfdist.variables.reserved_rows import tables_that_grow
from tfdist.variables.variable import ParameterServerVariable

_LOSES_UPDATES = (
    "Such a variable lives on the chief, where workers lose each other's updates. Create "
    "the model, its metrics and its optimizer inside"
)
_ON_CHIEF_ONLY = (
    "It exists on the chief only. Every worker has a copy of a tf.lookup.StaticHashTable "
    "if it is created inside"
)
_ACCUMULATE = (
    "To accumulate gradients, use a larger batch, or give the optimizer "
    "gradient_accumulation_steps under tfdist.MultiWorkerMirroredStrategy() or, in fit, "
    "under consistency=tfdist.Synchronous(). Or train with one worker"
)
_ADDS_AND_SETS = (
    "and also sets or resets what it adds to. Other workers add in between, so what they "
    "add would be lost or counted twice. Let the step only add, and reset where no step "
    "is in flight: between epochs in a callback, or after strategy.coordinator.join() in "
    f"a loop of your own. {_ACCUMULATE}"
)
_SETS_AT_A_COUNT = (
    "at a position that it counts. Workers that read the same count would set the same "
    "position, so that all but one of their values would be lost. Keep a moving average "
    f"instead of a history. {_ACCUMULATE}"
)
_KEEPS_GRADIENTS = (
    "to gradients that it reads for an update, in this step or in a later one. Other workers "
    "set them in between, so that gradients would be lost or counted twice. Within a step, "
    f"use the tensors themselves. {_ACCUMULATE}"
)
_SETS_WEIGHTS = (
    "which an optimizer updates, so that updates of other workers would be lost. Compute "
    "with a changed value without assigning it to the weight, or write what changes, as "
    "weight.assign_add(...). A constraint must multiply, divide, clip, or take a maximum or "
    "a minimum. An optimizer with gradient_accumulation_steps sets its weights, too. Or use "
    "tfdist.MultiWorkerMirroredStrategy(), or train with one worker"
)
_LAYERS = {
    refused.STATEFUL: "workers that run batches at the same time would overwrite each "
    "other's state",
    refused.SPECTRAL: "this would erase the gradients that other workers have applied "
    "meanwhile",
    refused.FLOAT8: "its scales depend on the order of the steps, and asynchronous steps "
    "have none",
}
_OPTIMIZERS = {
    refused.LOSS_SCALE: "workers that change it at the same time can make it 0",
    refused.ACCUMULATION: "workers would add to and clear the same accumulators at the same "
    "time, so gradients would be lost or counted twice",
    refused.OVERWRITE: "one worker would overwrite the weights while the others update them",
    refused.SCHEDULE_FREE: "both must be read at the same moment, which the ps do not "
    "guarantee",
}


class AsynchronousTrainingError(RefusalError):
    """The model needs something that asynchronous training cannot do correctly."""


def check_scope(model: keras.Model) -> None:
    """Checks, before optimizers create variables, that those of a model are on the ps.

    Raises:
        AsynchronousTrainingError: If an optimizer or weight is from outside the scope.
    """
    for optimizer in optimizers_of(model):
        refused.check_belongs(
            optimizer, model.distribute_strategy, AsynchronousTrainingError
        )
    if weights := captures.weights_on_chief(model):
        raise AsynchronousTrainingError(_outside(weights, _LOSES_UPDATES))


def check_model(model: keras.Model, is_synchronous: bool = False) -> None:
    """Checks a compiled model before its step is traced.

    Args:
        model: The model.
        is_synchronous: Whether the optimizer runs once per round, alone.

    Raises:
        AsynchronousTrainingError: If one of its options, layers or optimizers would
            give wrong results on workers that do not wait for each other.
    """
    if model.run_eagerly:
        raise AsynchronousTrainingError(
            "run_eagerly=True would run every step on the chief, in Python, and none "
            "on a worker. Compile the model with run_eagerly=False, or debug it without "
            "the strategy first"
        )
    for layer in _tf.flatten_layers(model):
        refused.check(layer, _LAYERS, AsynchronousTrainingError)
    for optimizer in optimizers_of(model):
        if optimizer.global_clipnorm:
            _check_tables(model)
        if not is_synchronous:
            refused.check(optimizer, _OPTIMIZERS, AsynchronousTrainingError)


def _check_tables(model: keras.Model) -> None:
    """Checks that there is no table whose gradient Keras would make dense."""
    for path in tables_that_grow(model):
        raise AsynchronousTrainingError(
            "with global_clipnorm, Keras makes a gradient of all rows in each step, and "
            f"{path} is a table that grows: most of its rows are reserved, and not "
            "there. Use clipnorm, by weight, or clipvalue"
        )


def check_compiled(graph: tf.Graph) -> None:
    """Checks that no function which XLA compiles uses variables of the ps.

    Raises:
        AsynchronousTrainingError: If a `tf.function(jit_compile=True)` does.
    """
    for op in (op for each in _with_called(graph) for op in each.get_operations()):
        if _tf.is_compiled(op) and tf.resource in [each.dtype for each in op.inputs]:
            raise AsynchronousTrainingError(
                "a tf.function(jit_compile=True) that the step calls uses variables"
                f"{made_in(op, Author.PROGRAM, Author.PACKAGE)}. They live on the ps, and "
                "XLA compiles for one device. Remove jit_compile=True, or pass it tensors"
            )


def check_can_be_compiled(graph: tf.Graph, strategy: PsStrategy) -> None:
    """Checks that XLA can compile what a worker computes in a step.

    Several steps between two exchanges unpack their batches in a loop, and steps in rounds
    wait for their turn in one.

    XLA compiles no loop, branch or function that uses a variable of the ps, or draws from a
    stream of random numbers, which would begin anew on each worker, the same on all.

    Raises:
        AsynchronousTrainingError: If the step has one.
    """
    remedy = None
    if strategy.exchange.steps != 1 or keeps_values(strategy.exchange):
        remedy = f"exchange={strategy.exchange!r}", "exchange=tfdist.ExchangeEvery(1)"
    if not isinstance(strategy.consistency, Asynchronous | BoundedStaleness):
        remedy = (
            f"consistency={strategy.consistency!r}",
            "consistency=tfdist.Asynchronous()",
        )
    if remedy:
        raise AsynchronousTrainingError(
            f"jit_compile=True, and {remedy[0]}: XLA compiles the worker's part of one step, "
            f"which must not wait for others. Use {remedy[1]}, or compile the model with "
            "jit_compile=False"
        )
    for op in graph.get_operations():
        calls = list(_tf.graphs_called(op))
        what = "draws numbers from a stream" if any(map(_draws, calls)) else ""
        if calls and tf.resource in [each.dtype for each in op.inputs]:
            what = "uses variables of the ps"
        if op.type in ("Unique", "UniqueV2", "Where"):
            what = "has as many rows as only a batch tells"
        if what:
            raise AsynchronousTrainingError(
                f"jit_compile=True, and {op.name} ({op.type}) of the step {what}"
                f"{made_in(op, Author.PROGRAM, Author.PACKAGE)}. Read and draw "
                "before it, or compile the model with jit_compile=False"
            )


def _draws(graph: tf.Graph) -> bool:
    return any(node.op in RANDOM for node in all_nodes(graph.as_graph_def()))


def check_captures(function: Any, model: keras.Model) -> None:
    """Checks that a traced step uses no variables, tables or the like on the chief.

    Nor may it compile those of the ps.

    Raises:
        AsynchronousTrainingError: If one was created outside of the scope.
    """
    check_compiled(function.graph)
    variables, others = captures.resources_on_chief(function.graph, model)
    if variables or others:
        why = _LOSES_UPDATES if variables else _ON_CHIEF_ONLY
        raise AsynchronousTrainingError(_outside(variables + others, why))


def check_sets(
    graph: tf.Graph, strategy: PsStrategy, model: keras.Model | None = None
) -> None:
    """Checks that workers do not set what others add to at the same time.

    If there is a model, the error has the names that it gives to its variables.

    Raises:
        AsynchronousTrainingError: If, on more than one worker, a step sets a variable to
            which it adds, a position that it counts, or a weight that its optimizer updates.
    """
    if strategy.num_replicas == 1:
        return
    pairs = [(outermost(o), i) for o, i in graph.captures if o.dtype == tf.resource]
    placed = strategy.extended.placed.of_handles(outer for outer, _ in pairs)
    inside = {id(outer): inner for outer, inner in pairs}
    traced = set(_with_called(graph))

    def is_updated(variable: ParameterServerVariable) -> bool:
        return not traced.isdisjoint(variable.updated_in)

    # A row of a table that grows is set before anyone adds to it.
    states = [v for v, _ in placed if not is_updated(v) and v.rows_in_use is None]
    handles = [(v, inside[id(v.handle)]) for v in states]
    behind: dict[tf.Graph, dict[str, int]] = {}
    counted: dict[tf.Graph, bool] = {}
    updated = [inside[id(v.handle)] for v, _ in placed if is_updated(v) or v.is_slot]
    added = [v for v, handle in handles if is_added_to_and_set(handle, behind)]
    parts = [v for v, handle in handles if is_set_at_a_count(handle, behind, counted)]
    weights = [
        v for v, _ in placed if is_updated(v) and not traced.isdisjoint(v.set_in)
    ]
    others = [(v, handle) for v, handle in handles if not v.is_slot]
    kept = keeping_gradients(graph, others, updated)
    if not (found := added or parts or weights or kept):
        return
    names = {id(v.handle): name for v, name in placed}
    if model is not None:
        names |= captures.names_of_handles(graph, model)
    # Shards have the name of their variable.
    unique = dict.fromkeys(names[id(v.handle)] for v in found)
    what, why = ("adds to", _ADDS_AND_SETS) if added else ("sets", _SETS_WEIGHTS)
    if found is parts or found is kept:
        why = _SETS_AT_A_COUNT if parts else _KEEPS_GRADIENTS
    raise AsynchronousTrainingError(f"the step {what} {', '.join(unique)}, {why}")


def checker_of_scheduled(strategy: PsStrategy) -> Callable[[Any], None]:
    """Returns what checks each function of the user's own loop, as `check_sets` does.

    It checks the whole function: what one `strategy.run` adds to, another may set.
    """
    # The threads of the workers hold on to it, and must not to the strategy.
    reference = weakref.ref(strategy)
    checked: weakref.WeakSet[Any] = weakref.WeakSet()

    def check(function: Any) -> None:
        there = reference()
        if there is None or function in checked or is_checked_already.get():
            return
        check_sets(function.graph, there)
        checked.add(function)

    return check


def _with_called(graph: tf.Graph) -> Iterator[tf.Graph]:
    yield graph
    for op in graph.get_operations():
        for called in _tf.graphs_called(op):
            yield from _with_called(called)


def _outside(names: list[str], why: str) -> str:
    return (
        f"created outside of the strategy's scope: {', '.join(names)}. {why} `with "
        "strategy.scope():`"
    )
