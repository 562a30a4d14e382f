"""Costs of a Keras model's layers, estimated from shapes without running them."""

import math
from typing import Any

import keras

from tfdist._support.types import Nest
from tfdist.research.model_parallel.graph import LayerGraph
from tfdist.research.model_parallel.keras_graph import LayerCall, bytes_of, graph_of

# The gradients of the inputs and of the weights take as much as the outputs did, each.
BACKWARD = 2
"""The time of a backward computation, as a multiple of the forward one's."""


def estimate_layers(
    model: keras.Model,
    *,
    batch_size: int = 32,
    flops: float,
    bandwidth: float = math.inf,
) -> LayerGraph:
    """Estimates a model's layers from shapes, for models that cannot run here.

    A layer multiplies each of its weights of two or more axes once for each position of
    its output (not an embedding, which only reads rows), and reads and writes memory:
    whichever takes longer. So matrices and convolutions are counted; what a layer
    multiplies besides, as attention does, is not.

    `flops` (operations per second) and `bandwidth` (bytes per second of the memory) are
    those of a device of speed 1. Raises UnknownGraphError for a model without a known
    graph, as `tfdist.research.measure_layers` does.
    """
    for name, number in (
        ("batch_size", batch_size),
        ("flops", flops),
        ("bandwidth", bandwidth),
    ):
        if not number > 0:
            raise ValueError(f"{name} must be positive; received {number!r}")

    def call(
        operation: keras.Operation, args: tuple[Nest, ...], kwargs: dict[str, Nest]
    ) -> LayerCall:
        found = operation.compute_output_spec(*args, **kwargs)
        # An operation may return its input; each output has to be a tensor of its own.
        outputs = keras.tree.map_structure(
            lambda each: keras.KerasTensor(each.shape, each.dtype), found
        )
        seconds = seconds_of_call(operation, (args, kwargs), outputs, flops, bandwidth)
        return LayerCall(outputs, seconds, BACKWARD * seconds)

    def input_of(shape: tuple[int, ...], dtype: str) -> Any:
        return keras.KerasTensor(shape, dtype)

    return graph_of(model, call, input_of, batch_size)


def seconds_of_call(
    operation: keras.Operation,
    arguments: Nest,
    outputs: Nest,
    flops: float,
    bandwidth: float,
) -> float:
    """Returns the seconds of a call of a layer: of computing or of memory, the longer.

    An unknown length of the arguments counts as 1.
    """
    moved = bytes_of(arguments) + bytes_of(outputs)
    return max(2 * multiplications(operation, outputs) / flops, moved / bandwidth)


def multiplications(operation: keras.Operation, outputs: Nest) -> int:
    """Returns how many numbers a layer multiplies by its weights.

    Each matrix or kernel counts once for every position of the output: every example,
    every step of a sequence, every pixel. A lookup in a table multiplies nothing.
    """
    if isinstance(operation, keras.layers.Embedding):
        return 0
    first = keras.tree.flatten(outputs)[0]
    positions = math.prod(length or 1 for length in first.shape[:-1])
    weights = [w for w in getattr(operation, "weights", []) if len(w.shape) > 1]
    return positions * sum(math.prod(weight.shape) for weight in weights)
