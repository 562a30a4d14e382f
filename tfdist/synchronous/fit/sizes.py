"""The elements of a shape that a step computes, as far as its graph shows them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras.graph import constant
from tfdist.synchronous.fit.rows import Rows

EXAMPLES = "the number of examples of the replica"

Size = int | str | None
"""A number, EXAMPLES, or None if it is not known."""

RowsOf = Callable[[Any], Rows | None]
"""Returns where the rows of a tensor are, or None if it has none."""


def counts(number: Any, rows_of: RowsOf) -> bool:
    """Returns whether a scalar is the number of examples of the replica."""
    return _scalar(number, rows_of) == EXAMPLES


def sizes(vector: Any, rows_of: RowsOf) -> list[Size] | None:
    """Returns the elements of a shape, or None if not even their number is known."""
    value = constant(vector)
    if value is not None:
        return [int(each) for each in np.ravel(value)]
    op = vector.op
    if op.type in ("Cast", "Identity"):
        return sizes(op.inputs[0], rows_of)
    if op.type in ("Shape", "ShapeN"):
        return _measured(op.inputs[vector.value_index], rows_of)
    if op.type == "Pack":
        return [_scalar(each, rows_of) for each in op.inputs]
    if op.type == "ConcatV2":
        return _joined([sizes(each, rows_of) for each in list(op.inputs)[:-1]])
    if op.type == "ExpandDims":
        return [_scalar(op.inputs[0], rows_of)]
    if op.type in ("GatherV2", "Slice", "StridedSlice"):
        return _selected(op, rows_of)
    count = vector.shape[0] if vector.shape.rank == 1 else None
    return None if count is None else [None] * count


def _measured(tensor: Any, rows_of: RowsOf) -> list[Size] | None:
    if tensor.shape.rank is None:
        return None
    result: list[Size] = list(tensor.shape)
    rows = rows_of(tensor)
    if rows and rows.order == () and result[rows.axis] is None:
        result[rows.axis] = EXAMPLES
    return result


def _joined(parts: list[list[Size] | None]) -> list[Size] | None:
    result: list[Size] = []
    for each in parts:
        if each is None:
            return None
        result += each
    return result


def _selected(op: tf.Operation, rows_of: RowsOf) -> list[Size] | None:
    of = sizes(op.inputs[0], rows_of)
    places = [constant(each) for each in list(op.inputs)[1:]]
    if of is None or any(each is None for each in places):
        return None
    if op.type == "GatherV2":
        return [of[place] for place in np.ravel(places[0])]
    first, last = (int(np.ravel(each)[0]) for each in places[:2])
    if op.type == "Slice":
        return of[first:] if last < 0 else of[first : first + last]
    begin = None if op.get_attr("begin_mask") & 1 else first
    end = None if op.get_attr("end_mask") & 1 else last
    if op.get_attr("shrink_axis_mask") & 1:
        return [of[first]]
    return of[begin : end : int(np.ravel(places[2])[0])]


def _scalar(tensor: Any, rows_of: RowsOf) -> Size:
    value = constant(tensor)
    if value is not None:
        return int(value)
    op = tensor.op
    if op.type in ("Cast", "Identity", "Squeeze", "Reshape"):
        return _scalar(op.inputs[0], rows_of) if op.inputs[0].shape.rank == 0 else None
    if op.type == "Maximum":
        # max(n, 0) is n, and so is max(n, 1): no replica has an empty batch.
        found = [_scalar(each, rows_of) for each in op.inputs]
        return EXAMPLES if EXAMPLES in found and {0, 1} & set(found) else None
    if op.type == "Prod":
        return _product(sizes(op.inputs[0], rows_of))
    if op.type in ("GatherV2", "StridedSlice") and op.inputs[0].shape.rank == 1:
        found = _selected(op, rows_of) or []
        return found[0] if len(found) == 1 else None
    return None


def _product(factors: list[Size] | None) -> Size:
    others = [each for each in factors or [None] if each != 1]
    if len(others) == 1:
        return others[0]
    if not all(isinstance(each, int) for each in others):
        return None
    result = 1
    for each in others:
        result *= int(each or 0)
    return result
