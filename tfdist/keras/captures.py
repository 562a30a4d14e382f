"""Finds objects of the chief that a traced step uses, under the user's names."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.authors import Author, made_in
from tfdist.keras.graph import outermost

# Workers may use the chief's summary writer: each write runs on the chief, where the
# writer is.
_ALLOWED = "tensorflow::SummaryWriterInterface"
_IN_THE_CLUSTER = ("ps", "worker")


def resources_on_chief(
    graph: tf.Graph, model: keras.Model
) -> tuple[list[str], list[str]]:
    """Names the variables, and the other resources, on the chief that a step uses.

    They are tables, generators and iterators, but not the writer of `tf.summary`.
    """
    variables, others = [], []
    names = names_of_handles(graph, model)
    for outside, inside in graph.captures:
        handle = outermost(outside)
        if handle.dtype != tf.resource or _is_in_the_cluster(handle):
            continue
        kind = _tf.resource_type(handle)
        if kind == "tensorflow::Var":
            variables.append(names.get(id(handle)) or _by_use(inside, "a variable"))
        elif kind != _ALLOWED:
            others.append(names.get(id(handle)) or _by_use(inside, "a resource"))
    return variables, others


def names_of_handles(graph: tf.Graph, model: keras.Model) -> dict[int, str]:
    """Returns names by the identities of resource handles."""
    # Later entries win: an attribute's name says more than a variable's, and Keras's
    # path says the most.
    names = {id(v.handle): f"{v.name} of shape {v.shape}" for v in graph.variables}
    for owner in _owners(model):
        path = getattr(owner, "path", None) or owner.name
        for name, value in vars(owner).items():
            for place, each in _elements(value):
                handle = _handle(each)
                if handle is not None:
                    kind = type(each).__name__
                    also = "" if isinstance(each, tf.Variable) else f" ({kind})"
                    names[id(handle)] = f"{path}.{name}{place}{also}"
    for variable in (
        *model.variables,
        *model.metrics_variables,
        *getattr(getattr(model, "optimizer", None), "variables", ()),
    ):
        # Each shard of a variable is a variable to TensorFlow.
        for each in getattr(variable.value, "shards", (variable.value,)):
            names[id(each.handle)] = variable.path
    return names


def weights_on_chief(model: keras.Model) -> list[str]:
    """Names the trained weights of a model that are on the chief.

    They are known before an optimizer creates slots next to them, which TensorFlow refuses
    in words of its own.
    """
    values = [(each.path, _tf.value_of(each)) for each in model.trainable_variables]
    shards = [(path, getattr(value, "shards", [value])[0]) for path, value in values]
    return [path for path, shard in shards if not _is_in_the_cluster(shard)]


def _is_in_the_cluster(variable_or_handle: Any) -> bool:
    return tf.DeviceSpec.from_string(variable_or_handle.device).job in _IN_THE_CLUSTER


def _owners(model: keras.Model) -> Iterator[Any]:
    yield model
    yield from _tf.flatten_layers(model)
    yield from model.metrics
    if (optimizer := getattr(model, "optimizer", None)) is not None:
        yield optimizer


def _elements(value: Any) -> list[tuple[str, Any]]:
    """Returns the values of an attribute, and the place of each."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return [(f"[{key!r}]", each) for key, each in value.items()]
    return [("", value)]


def _handle(value: Any) -> tf.Tensor | None:
    if isinstance(value, tf.Variable):
        return value.handle
    if isinstance(value, tf.random.Generator):
        return value.state.handle
    if isinstance(value, tf.saved_model.experimental.TrackableResource):
        return value.resource_handle
    return None


def _by_use(tensor: tf.Tensor, what: str) -> str:
    """Names a resource by the first operation of the step that uses it."""
    for op in uses(tensor):
        return f"{what} that {op.type} uses{made_in(op, Author.PROGRAM)}"
    return what


def uses(
    tensor: tf.Tensor, calls: dict[tf.Graph, tf.Operation] | None = None
) -> Iterator[tf.Operation]:
    """Yields the operations that use a tensor, including those in called functions.

    `calls` gets the operation that calls each function, by the function's graph.
    """
    for op in tensor.consumers():
        graphs = list(_tf.graphs_called(op))
        if not graphs:
            yield op
        for graph in graphs:
            if calls is not None:
                calls[graph] = op
            for given, inner in zip(_tf.arguments_of(op), graph.inputs, strict=True):
                if given is tensor:
                    yield from uses(inner, calls)
