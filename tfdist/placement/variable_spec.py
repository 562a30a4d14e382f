"""Properties of a variable that are known before it is created."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class VariableSpec:
    """The properties of a variable that are known before it is created.

    Attributes:
        name: The full name, for example `"cnn/dense/kernel"`.
        shape: The dimensions, all known.
        dtype: The name of the dtype, for example `"float32"`.
        itemsize: The size of one element, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def size_bytes(self) -> int:
        """The size of the variable's value, in bytes."""
        return math.prod(self.shape) * self.itemsize


def spec_of_operation(op: Any) -> VariableSpec:
    """Returns the spec of the variable that an operation of a graph creates.

    Raises ValueError if it creates none, or one whose shape is not known.
    """
    try:
        shape, dtype = op.get_attr("shape"), op.get_attr("dtype")
    except ValueError:
        shape = dtype = None
    # An unknown dimension has the size -1 in a TensorShapeProto.
    if shape is None or shape.unknown_rank or any(d.size < 0 for d in shape.dim):
        raise ValueError(
            f"the size of {op.name}, an operation of type {op.type}, is not known before "
            "it is created: pass your own load_fn to GreedyLoadBalancing"
        )
    dimensions = tuple(int(dimension.size) for dimension in shape.dim)
    return VariableSpec(op.name, dimensions, dtype.name, dtype.size)
