"""Tensors arrive as they were sent: any dtype, any bits, shapes known or not."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from tfdist.parameter_server.step_graph import wire
from tfdist.parameter_server.step_graph.definitions import Builder
from tfdist.parameter_server.step_graph.graph_fragment import GraphFragment


def sent(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """Adds what sends and receives tensors to the function being traced."""
    inputs = [f"x{i}:0" for i in range(len(tensors))]
    parts = [
        wire.Part(name.partition(":")[0], each.dtype, each.shape)
        for name, each in zip(inputs, tensors, strict=True)
    ]
    builder = Builder("wire", "")
    received = wire.receive(wire.send(parts, builder), parts, builder)
    definition = tf.compat.v1.GraphDef(node=builder.made)
    outputs = [each if ":" in each else f"{each}:0" for each in received]
    return GraphFragment(definition, inputs).add(tensors, outputs, "sent")


def assert_same(received: Sequence[tf.Tensor], values: Sequence[np.ndarray]) -> None:
    for ours, value in zip(received, values, strict=True):
        assert ours.numpy().dtype == value.dtype
        assert ours.numpy().shape == value.shape
        assert ours.numpy().tobytes() == value.tobytes(), "bit by bit"


VALUES = {
    "float32": np.float32([[1.5, -0.0, 1e-42], [np.nan, np.inf, 0]]),
    "float64": np.float64([[1.5, 5e-324]]),
    "int32": np.int32([[1, -1, 0, 2**31 - 1]]),
    "int64": np.int64([[3], [-(2**40)]]),
    "uint32": np.uint32([[7, 2**32 - 1]]),
    "empty": np.zeros((0, 5), "float32"),
}


@pytest.mark.parametrize("rows", [True, False], ids=["any-rows", "static"])
@pytest.mark.parametrize(
    "names",
    [["float32", "empty"], ["int64", "int64"], ["float64"], list(VALUES)],
    ids="+".join,
)
def test_bits_and_shapes_arrive(names: list[str], rows: bool) -> None:
    values = [VALUES[name] for name in names]
    specs = [
        tf.TensorSpec([None if rows else len(each), *each.shape[1:]], each.dtype)
        for each in values
    ]
    assert_same(tf.function(sent, input_signature=specs)(*values), values)


@pytest.mark.parametrize("sizes", [[3], [4], [3, 2], [1, 1, 1]], ids=str)
@pytest.mark.parametrize("others", [[], ["int64", "float32"]], ids=["alone", "mixed"])
def test_half_words_arrive_among_words(sizes: list[int], others: list[str]) -> None:
    numbers = np.random.default_rng(0).normal(size=10)
    halves = [tf.cast(numbers[:size], tf.bfloat16).numpy() for size in sizes]
    values = [VALUES["float32"], *halves, *(VALUES[each] for each in others)]
    values = values if others else halves
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in values]
    assert_same(tf.function(sent, input_signature=specs)(*values), values)


def test_integers_are_never_held_as_floats() -> None:
    """TensorFlow takes a denormal number for 0 where it folds constants."""
    builder = Builder("wire", "")
    shapes = [tf.TensorShape([None, 8]), tf.TensorShape([2])]
    dtypes = [tf.float32, tf.int64]
    parts = [wire.Part(n, d, s) for n, d, s in zip("xy", dtypes, shapes, strict=True)]
    wire.send(parts, builder)
    copied = [each for each in builder.made if each.op in ("Bitcast", "ConcatV2")]
    kinds = {each.attr["type"].type or each.attr["T"].type for each in copied}
    assert kinds == {tf.int32.as_datatype_enum}


def test_parts_of_one_dtype_travel_as_they_are() -> None:
    builder = Builder("wire", "")
    parts = [wire.Part(name, tf.float32, tf.TensorShape([2])) for name in "xy"]
    wire.receive(wire.send(parts, builder), parts, builder)
    assert "Bitcast" not in {each.op for each in builder.made}
