"""What the layers of a model cost, and what they give each other, from shapes alone."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdist import _tf
from tfdist.model_parallel.estimated import BACKWARD, seconds_of_call
from tfdist.model_parallel.graph import LayerEdge, LayerGraph, LayerNode
from tfdist.model_parallel.keras_graph import bytes_of
from tfdist.pipeline.chain import OUTPUTS
from tfdist.pipeline.nominal import ROWS, Speed


def graph_of_calls(functional: Any, nodes: Sequence[Any], speed: Speed) -> LayerGraph:
    """Returns the calls of layers as a graph, and after them one that takes the outputs.

    As `tfdist.model_parallel.estimated`, for microbatches of 32 rows. A model within the
    model counts as one; a length that is not known, as 1.

    Args:
        functional: The functional model.
        nodes: The calls, each after those whose results it takes.
        speed: That of a device.
    """
    calls: list[LayerNode] = []
    edges: dict[tuple[str, str, int], LayerEdge] = {}
    made: dict[int, tuple[str, int]] = {}
    trained: set[str] = set()
    counted: set[int] = set()

    def take(values: Sequence[Any], name: str) -> None:
        for value in values:
            if id(value) not in made:
                continue
            source, output = made[id(value)]
            has_gradient = source in trained and _is_float(value)
            edges[source, name, output] = LayerEdge(
                source, name, ROWS * bytes_of(value), has_gradient, output
            )
            if source in trained:
                trained.add(name)

    for at, node in enumerate(nodes):
        name = f"{at} {node.operation.name}"
        take(node.input_tensors, name)
        if getattr(node.operation, "trainable_variables", ()):
            trained.add(name)
        variables = {id(v): v for v in getattr(node.operation, "variables", ())}
        new = [v for key, v in variables.items() if key not in counted]
        counted |= set(variables)
        seconds = ROWS * _seconds(node, speed)
        calls.append(
            LayerNode(
                name,
                seconds,
                BACKWARD * seconds if name in trained else 0.0,
                bytes_of(new),
                ROWS * bytes_of(node.outputs),
            )
        )
        made |= {id(each): (name, output) for output, each in enumerate(node.outputs)}
    take(functional.outputs, OUTPUTS)
    return LayerGraph((*calls, LayerNode(OUTPUTS, 0.0)), tuple(edges.values()))


def _seconds(node: Any, speed: Speed) -> float:
    layer = node.operation
    if isinstance(layer, keras.Model) and (inner := _tf.functional_of(layer)):
        return sum(_seconds(each, speed) for each in _tf.nodes_of(inner))
    return seconds_of_call(layer, node.input_tensors, node.outputs, *speed)


def _is_float(value: Any) -> bool:
    return "float" in keras.backend.standardize_dtype(value.dtype)
