"""Checks for models that cannot train correctly on parts of a batch.

They raise before the first step, with the reason and what to do instead.
"""

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.authors import Author, made_in
from tfdist._support.errors import RefusalError
from tfdist._support.types import Nest
from tfdist.keras import captures, refused
from tfdist.keras.graph import handle_of
from tfdist.keras.refused import ScopeError
from tfdist.synchronous.reader.reduction import ADDED_UP, WEIGHED, Reduction
from tfdist.synchronous.replica.on_read import is_on_read
from tfdist.synchronous.replica.step import ReplicaStep

_WRITES = frozenset(
    ["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"]
    + [f"ResourceScatter{what}" for what in ("Add", "Sub", "Update", "Max", "Min")]
    + [f"ResourceScatterNd{what}" for what in ("Add", "Sub", "Update", "Max", "Min")]
    + ["ResourceStridedSliceAssign"]
)

_LAYERS = {
    refused.STATEFUL: "its state has one row per example of a batch, but each replica has "
    "only some of the examples",
    refused.FLOAT8: "its scales depend on all examples, but each replica has only some",
}
_ADD_WEIGHT = (
    "Create it with add_weight of a layer, whose variables get the value of the whole "
    "batch"
)


class SynchronousTrainingError(RefusalError):
    """The model needs something that replicas with parts of a batch cannot do."""


def check_weights(model: keras.Model) -> None:
    """Checks, before an optimizer creates slots, that weights have copies on all workers.

    Raises:
        ScopeError: If a weight was created outside of the scope.
    """
    _check_none(captures.weights_on_chief(model))


def check_optimizer(model: keras.Model) -> None:
    """Checks that a model's optimizer belongs to its strategy.

    Raises:
        ScopeError: If it was created outside of the scope.
    """
    refused.check_belongs(model.optimizer, model.distribute_strategy, ScopeError)


def check_model(model: keras.Model) -> None:
    """Checks a model before it is trained.

    Raises:
        SynchronousTrainingError: If it has a layer that needs all examples of a batch.
    """
    for layer in _tf.flatten_layers(model):
        refused.check(layer, _LAYERS, SynchronousTrainingError)


def check_is_not_compiled(model: keras.Model) -> None:
    """Checks that XLA is not to compile a model's steps.

    Raises:
        SynchronousTrainingError: If it is.
    """
    if model.jit_compile:
        raise SynchronousTrainingError(
            "jit_compile=True compiles a step for one device, but under this strategy the "
            "replicas exchange gradients within a step. Compile the model with "
            "jit_compile=False"
        )


def check_normalization(step: ReplicaStep) -> None:
    """Checks that synchronized normalization has the statistics of the whole batch.

    Behind a mask Keras computes them from each replica's part, without a word.

    Raises:
        SynchronousTrainingError: If a layer has those of a part.
    """
    for layer in _tf.flatten_layers(step.model):
        if not getattr(layer, "synchronized", False):
            continue
        if id(getattr(layer, "moving_mean", None)) in step.written:
            raise SynchronousTrainingError(
                f"layer {layer.name!r} has synchronized=True and a mask, with which "
                "Keras takes the statistics of each replica's part of the batch. Remove "
                "the mask (mask_zero=False, or no Masking before it), or normalize "
                "before the layer that makes it"
            )


def check_assigned(graph: tf.Graph, step: ReplicaStep) -> None:
    """Checks that a step gives plain TensorFlow variables one value on all replicas.

    Keras's own variables get that of the whole batch. Others keep what each replica has
    computed from its part, and their copies drift apart.

    Raises:
        SynchronousTrainingError: If one gets a replica's own value.
    """
    reader, handles = (
        step.reader,
        [_tf.value_of(each).handle for each in step.model.variables],
    )
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
        where = made_in(op, Author.PROGRAM, Author.PACKAGE)
        if not {reader.kind_of(each) for each in values} <= {Reduction.SAME}:
            raise SynchronousTrainingError(
                f"a tf.Variable is set to what each replica computes from its own part "
                f"of the batch{where}, so that its copies differ. {_ADD_WEIGHT}; or, for a "
                "mean over examples, with aggregation=tf.VariableAggregation.MEAN"
            )
        for each in values:
            _check_reduced(each, step, where)


def _check_reduced(value: Nest, step: ReplicaStep, where: str) -> None:
    """Checks that the replicas' values were reduced to the whole batch's.

    Raises:
        SynchronousTrainingError: If they were reduced to another number.
    """
    while value.op.type == "Identity" and value.ref() not in step.reduced:
        value = value.op.inputs[0]
    if value.ref() not in step.reduced:
        return
    reduce_op, kind = step.reduced[value.ref()]
    is_sum = reduce_op == tf.distribute.ReduceOp.SUM
    if kind not in (ADDED_UP if is_sum else WEIGHED) and not step.is_mean:
        what = "a sum" if is_sum else "a mean"
        raise SynchronousTrainingError(
            f"a tf.Variable with the aggregation {reduce_op.value} must be set to {what} over "
            f"examples; received another value{where}: the {reduce_op.value.lower()} of all "
            f"replicas' values is not the whole batch's value. {_ADD_WEIGHT}"
        )


def check_copies(graph: tf.Graph, model: keras.Model) -> None:
    """Checks that a step uses only variables with a copy on every replica.

    A variable of the tracing process has one copy, to which the updates of all replicas
    would be applied.

    Raises:
        ScopeError: If the step uses another variable.
    """
    _check_none(captures.resources_on_chief(graph, model)[0])


def _check_none(outside: list[str]) -> None:
    if outside:
        raise ScopeError(
            f"created outside of the strategy's scope: {', '.join(outside)}. Such a "
            "variable has no copies on the workers. Create the model, its metrics and "
            "its optimizer inside `with strategy.scope():`"
        )
