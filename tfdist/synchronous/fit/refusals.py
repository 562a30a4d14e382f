"""Checks for models that cannot train correctly on parts of a batch.

They raise before the first step, with the reason and what to do instead.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._authors import Author, made_in
from tfdist.keras import captures
from tfdist.keras.graph import handle_of
from tfdist.synchronous.fit.kind import Kind
from tfdist.synchronous.fit.replica import ReplicaStep
from tfdist.synchronous.on_read import is_on_read

_WRITES = frozenset(
    ["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"]
    + [f"ResourceScatter{what}" for what in ("Add", "Sub", "Update", "Max", "Min")]
    + [f"ResourceScatterNd{what}" for what in ("Add", "Sub", "Update", "Max", "Min")]
    + ["ResourceStridedSliceAssign"]
)


class ScopeError(ValueError):
    """Part of a model was created outside of the strategy's scope."""


class SynchronousTrainingError(ValueError):
    """The model needs something that replicas with parts of a batch cannot do."""


def check_optimizer(model: Any) -> None:
    """Checks that a model's optimizer belongs to its strategy.

    Raises:
        ScopeError: If it was created outside of the scope.
    """
    optimizer, strategy = model.optimizer, model.distribute_strategy
    if optimizer is not None and optimizer._distribution_strategy is not strategy:
        raise ScopeError(
            f"the optimizer {type(optimizer).__name__} was created outside of the "
            "strategy's scope. Create it, and call model.compile(...), inside `with "
            "strategy.scope():`"
        )


def check_model(model: Any) -> None:
    """Checks a model before it is trained.

    Raises:
        SynchronousTrainingError: If it has a layer that needs all examples of a batch.
    """
    for layer in _tf.flatten_layers(model):
        _check_layer(layer)


def _check_layer(layer: keras.Layer) -> None:
    if getattr(layer, "stateful", False):
        raise SynchronousTrainingError(
            f"layer {layer.name!r} has stateful=True: its state has one row per "
            "example of a batch, but each replica has only some of the examples. Use "
            "stateful=False and longer sequences"
        )
    if any(getattr(v, "overwrite_with_gradient", False) for v in layer.variables):
        raise SynchronousTrainingError(
            f"layer {layer.name!r} computes in float8, whose scales depend on all "
            "examples, but each replica has only some of them. Use the dtype policy "
            "mixed_bfloat16"
        )


def check_assigned(graph: Any, step: ReplicaStep) -> None:
    """Checks that a step gives plain TensorFlow variables one value on all replicas.

    Keras's own variables get that of the whole batch. Others keep what each replica has
    computed from its part, and their copies drift apart.

    Args:
        graph: The graph in which the step was traced.
        step: The replica's step.

    Raises:
        SynchronousTrainingError: If one gets a replica's own value.
    """
    reader, handles = step.reader, [each.value.handle for each in step.model.variables]
    known = {id(each) for each in handles} | step.assigned
    # The graph may have the steps of other replicas, each of which checks its own.
    here = {each.device for each in handles}
    for op in graph.get_operations():
        if op.type not in _WRITES:
            continue
        handle = handle_of(op)
        if handle.device not in here or id(handle) in known or is_on_read(handle):
            continue
        values = [each for each in op.inputs if each.dtype != tf.resource]
        if not {reader.kind_of(each) for each in values} <= {Kind.SAME}:
            raise SynchronousTrainingError(
                f"a tf.Variable is set to what each replica computes from its own part "
                f"of the batch{made_in(op, Author.PROGRAM, Author.PACKAGE)}, so that its "
                "copies differ. Create it with add_weight of a layer, whose variables get "
                "the value of the whole batch; or, for a mean over examples, with "
                "aggregation=tf.VariableAggregation.MEAN"
            )


def check_copies(graph: Any, model: Any) -> None:
    """Checks that a step uses only variables with a copy on every replica.

    A variable of the tracing process has one copy, to which the updates of all replicas
    would be applied.

    Args:
        graph: The graph in which the step was traced.
        model: The Keras model, to name its variables.

    Raises:
        ScopeError: If the step uses another variable.
    """
    variables, _ = captures.resources_on_chief(graph, model)
    if variables:
        raise ScopeError(
            f"created outside of the strategy's scope: {', '.join(variables)}. Such a "
            "variable has no copies on the workers. Create the model, its metrics and "
            "its optimizer inside `with strategy.scope():`"
        )
