"""Makes and rewires the `NodeDef`s of a graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist._support.types import GraphDef, NodeDef
from tfdist.parameter_server.step_graph.messages import Output


def reference(output: Output) -> str:
    """Returns how the inputs of a `NodeDef` name an output."""
    name, index = output
    return f"{name}:{index}" if index else name


def rewire(definition: GraphDef, replaced: Mapping[str, str]) -> None:
    """Replaces inputs of a `NodeDef`, by "" to remove one; control inputs are `^name`."""
    # `x` and `x:0` are the same output.
    inputs = [each.removesuffix(":0") for each in definition.input]
    inputs = [replaced.get(each, each) for each in inputs]
    definition.input[:] = [each for each in inputs if each]


@dataclass(eq=False)
class Builder:
    """Makes `NodeDef`s on one device.

    Args:
        prefix: How their names begin.
        device: The device; "" for the default.

    Attributes:
        made: The `NodeDef`s.
    """

    prefix: str
    device: str

    def __post_init__(self) -> None:
        self.made: list[NodeDef] = []
        self._constants: dict[bytes, str] = {}

    def add(
        self, op: str, inputs: Sequence[str], name: str | None = None, **attrs: Any
    ) -> str:
        """Adds an operation, numbered by default; returns the reference to its first output.

        An attribute is a dtype, a number, or a tensor.
        """
        name = name or f"{self.prefix}/{len(self.made)}"
        definition = tf.compat.v1.NodeDef(
            name=name, op=op, device=self.device, input=inputs
        )
        for key, value in attrs.items():
            if isinstance(value, tf.DType):
                definition.attr[key].type = value.as_datatype_enum
            elif isinstance(value, int):
                definition.attr[key].i = value
            else:
                definition.attr[key].tensor.CopyFrom(value)
        self.made.append(definition)
        return name

    def constant(self, value: Any, dtype: tf.DType = tf.int32) -> str:
        """Adds a constant, unless it is there, and returns the reference to it."""
        # Equal ones are one: a message has the same few sizes and axes again and again.
        tensor = tf.make_tensor_proto(value, dtype)
        key = tensor.SerializeToString()
        if key not in self._constants:
            self._constants[key] = self.add("Const", (), dtype=dtype, value=tensor)
        return self._constants[key]

    def concatenate(self, vectors: Sequence[str], dtype: tf.DType) -> str:
        """Adds a node that concatenates vectors."""
        # ConcatV2 takes two at least.
        if len(vectors) == 1:
            return vectors[0]
        inputs = [*vectors, self.constant(0)]
        return self.add("ConcatV2", inputs, N=len(vectors), T=dtype, Tidx=tf.int32)
