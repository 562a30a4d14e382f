"""The elements of a shape that a step computes, as far as its graph shows them."""

from collections.abc import Callable, Container, Hashable, Sequence
from math import prod

import numpy as np
import tensorflow as tf

from tfdist.keras.graph import constant, inputs_of
from tfdist.synchronous.reader.reduction import Reduction
from tfdist.synchronous.reader.rows import RowsOf

MEASURES = frozenset(["Shape", "ShapeN", "Size"])
"""Operations that return the shape of a tensor, or its product."""

EXAMPLES = "the number of examples of the replica"

Size = int | str | None
"""A number, EXAMPLES, or None if it is not known."""


def of_shape(
    tensor: tf.Tensor,
    inputs: Sequence[tf.Tensor],
    with_rows: Container[Hashable],
    count: Callable[[tf.Tensor, tf.Tensor], Reduction],
) -> Reduction:
    """Returns the kind of what is computed from a shape whose first element is a number of rows.

    Args:
        tensor: The result.
        inputs: The tensors that it is computed from, the shape first.
        with_rows: References of the tensors that have rows.
        count: Returns the kind of a number of rows, given it and the tensor.
    """
    op, shape = tensor.op, inputs[0]
    if op.type in ("Identity", "Cast"):
        return Reduction.SHAPE
    measure = shape
    while measure.op.type not in MEASURES and (before := inputs_of(measure)):
        measure = before[0]
    if measure.op.type not in MEASURES:
        # A function was given the shape.
        return Reduction.UNKNOWN
    measured = measure.op.inputs[measure.value_index]
    if measured.ref() not in with_rows:
        return Reduction.UNKNOWN
    if op.type == "Prod":
        return count(tensor, measured)
    begin = tf.get_static_value(inputs[1]) if op.type == "StridedSlice" else None
    if begin is None or shape.shape.rank != 1:
        return Reduction.OTHER
    is_masked = op.get_attr("begin_mask") & 1
    first = 0 if is_masked else int(begin[0]) % (shape.shape[0] or 1)
    # The sizes of the other axes are those of an example, equal everywhere.
    if first:
        return Reduction.SAME
    return count(tensor, measured) if tensor.shape.rank == 0 else Reduction.SHAPE


def sizes(tensor: tf.Tensor, rows_of: RowsOf) -> list[Size] | None:
    """Returns the elements of a shape, or one number; None if their number is not known."""
    value = constant(tensor)
    if value is not None:
        return [int(each) for each in np.ravel(value)]
    op = tensor.op
    if op.type in ("Cast", "Identity"):
        return sizes(op.inputs[0], rows_of)
    if op.type == "Shape":
        return _measured(op.inputs[0], rows_of)
    if op.type == "Pack":
        found = [sizes(each, rows_of) or [] for each in op.inputs]
        return [each[0] if len(each) == 1 else None for each in found]
    if op.type == "ConcatV2":
        parts = [sizes(each, rows_of) for each in list(op.inputs)[:-1]]
        return None if None in parts else [s for part in parts for s in part or []]
    if op.type in ("GatherV2", "Slice", "StridedSlice"):
        return _selected(op, rows_of)
    if op.type == "Prod" and tensor.shape.rank == 0:
        factors = [each for each in sizes(op.inputs[0], rows_of) or [None] if each != 1]
        numbers = [each for each in factors if isinstance(each, int)]
        if len(factors) != 1:
            factors = [prod(numbers) if numbers == factors else None]
        return factors
    count = tensor.shape[0] if tensor.shape.rank == 1 else None
    return None if count is None else [None] * count


def _measured(tensor: tf.Tensor, rows_of: RowsOf) -> list[Size] | None:
    if tensor.shape.rank is None:
        return None
    result: list[Size] = list(tensor.shape)
    rows = rows_of(tensor)
    if rows and rows.order == () and result[0] is None:
        result[0] = EXAMPLES
    return result


def _selected(op: tf.Operation, rows_of: RowsOf) -> list[Size] | None:
    # One of another rank has other places than its elements.
    of = sizes(op.inputs[0], rows_of) if op.inputs[0].shape.rank == 1 else None
    places = [constant(each) for each in list(op.inputs)[1:]]
    if of is None or any(each is None for each in places):
        return None
    if op.type == "GatherV2":
        return [of[place] for place in np.ravel(places[0])]
    first, last, *step = (int(np.ravel(each)[0]) for each in places)
    if op.type == "Slice":
        return of[first:] if last < 0 else of[first : first + last]
    if op.get_attr("shrink_axis_mask") & 1:
        return [of[first]]
    begin = None if op.get_attr("begin_mask") & 1 else first
    end = None if op.get_attr("end_mask") & 1 else last
    return of[begin : end : step[0]]
