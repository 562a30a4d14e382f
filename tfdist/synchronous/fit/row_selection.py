"""Operations that select from rows, or some of the rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfdist.synchronous.fit.application import Application, Rules
from tfdist.synchronous.fit.kind import CONSTANTS, Kind
from tfdist.synchronous.fit.rows import (
    SELECTED,
    NotOwnError,
    Operand,
    Rows,
    apart_from,
    constants_only,
    rows_only,
    same,
    together,
    unless_by_row,
)
from tfdist.synchronous.fit.sizes import EXAMPLES, RowsOf, constant, counts, sizes

SELECTION = Rules()
_rule = SELECTION.of


@_rule("Unpack")
def _unpack(at: Application) -> Rows:
    (of,) = at.operands
    rank = len(of.shape)
    place = int(at.op.get_attr("axis")) % rank
    if of.rows is None or of.rows.axis == place:
        raise NotOwnError(Kind.TAKEN)
    return replace(of.rows, axis=of.rows.axis - (place < of.rows.axis))


@_rule("Split SplitV")
def _split(at: Application) -> Rows:
    places = (1, 0) if at.op.type == "Split" else (0, 2)
    of, axis = (at.operands[place] for place in places)
    if of.rows is None or axis.value is None:
        raise NotOwnError
    if int(axis.value) % at.rank != of.rows.axis:
        return of.rows
    return _block_of(of.rows, at.op.get_attr("num_split"))


def _block_of(rows: Rows, count: int) -> Rows:
    """Returns the rows of one of so many blocks, which were put one after the other."""
    if not rows.order or rows.order[-1] != f"{count} blocks":
        raise NotOwnError(Kind.TAKEN)
    return replace(rows, order=rows.order[:-1])


@_rule("StridedSlice")
def _strided_slice(at: Application) -> Rows:
    of, begin, end, strides = at.operands
    if of.rows is None or begin.shape[0] is None:
        raise NotOwnError(Kind.TAKEN)
    masks = {name: at.op.get_attr(f"{name}_mask") for name in _MASKS}
    place, axis = _sliced_at(of.rows.axis, len(of.shape), begin.shape[0], masks)
    for i in range(begin.shape[0]):
        is_from_start, is_to_end, _, is_new, is_one = (
            m >> i & 1 for m in masks.values()
        )
        if i == place:
            is_whole = (is_from_start or begin.element(i) == 0) and (
                is_to_end or _is_number_of(of.rows, at, end, i)
            )
            if is_one or strides.element(i) != 1:
                raise NotOwnError(Kind.TAKEN)
            if not is_whole:
                return _half(at, i, bool(is_from_start), bool(is_to_end), axis)
        elif not is_new:
            given = [*([] if is_from_start else [begin]), *([] if is_to_end else [end])]
            if not all(at.is_same_at(each, i) for each in [*given, strides]):
                raise NotOwnError
    return replace(of.rows, axis=axis)


def _half(
    at: Application, place: int, is_from_start: bool, is_to_end: bool, axis: int
) -> Rows:
    """Returns the rows of the first or the second of two blocks of all examples."""
    of, begin, end, _ = at.operands
    edge = begin if is_to_end else end
    found = sizes(edge.tensor, at.rows_of) or []
    is_at_start = is_from_start or begin.element(place) == 0
    is_an_end = is_to_end or is_at_start
    if of.rows is None or not is_an_end or found[place : place + 1] != [EXAMPLES]:
        raise NotOwnError(Kind.TAKEN)
    if of.rows.order != ("2 blocks",):
        raise NotOwnError(Kind.TAKEN)
    return Rows(axis)


_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def _sliced_at(
    axis: int, rank: int, count: int, masks: Mapping[str, int]
) -> tuple[int | None, int]:
    """Returns which of the indices of a slice is that of an axis, and where that goes.

    Args:
        axis: The axis.
        rank: The number of axes of what is sliced.
        count: The number of indices.
        masks: Of the operation. The index is None for an axis that an ellipsis covers.
    """
    made = masks["ellipsis"] | masks["new_axis"]
    covered = rank - sum(not made >> i & 1 for i in range(count))
    source = result = 0
    for i in range(count):
        if masks["ellipsis"] >> i & 1:
            if source <= axis < source + covered:
                return None, result + axis - source
            source, result = source + covered, result + covered
        elif masks["new_axis"] >> i & 1:
            result += 1
        elif source == axis:
            return i, result
        else:
            source, result = source + 1, result + (not masks["shrink_axis"] >> i & 1)
    return None, axis - source + result


@_rule("Slice")
def _slice(at: Application) -> Rows:
    of, begin, size = at.operands
    if of.rows is None:
        raise NotOwnError(Kind.TAKEN)
    axis = of.rows.axis
    others = [place for place in range(at.rank) if place != axis]
    if not all(at.is_same_at(each, i) for each in (begin, size) for i in others):
        raise NotOwnError
    is_whole = size.element(axis) == -1 or _is_number_of(of.rows, at, size, axis)
    if begin.element(axis) != 0 or not is_whole:
        raise NotOwnError(Kind.TAKEN)
    return of.rows


def _is_number_of(rows: Rows, at: Application, shape: Operand, place: int) -> bool:
    """Returns whether an element of a shape is the number of all rows."""
    found = sizes(shape.tensor, at.rows_of) or []
    return rows.order == () and found[place : place + 1] == [EXAMPLES]


@_rule("GatherV2")
def _gather(at: Application) -> Rows:
    of, indices, axis = at.operands
    batch = at.op.get_attr("batch_dims")
    if axis.value is None:
        raise NotOwnError
    place = int(axis.value) % len(of.shape)
    if of.rows and of.rows.axis == place:
        if keeps_or_drops(indices, of.rows, at.rows_of):
            return replace(of.rows, order=SELECTED)
        raise NotOwnError(Kind.TAKEN if indices.kind in CONSTANTS else Kind.MIXED)
    rows_only(at.operands[:2])
    added = len(indices.shape) - batch
    if of.rows and indices.rows:
        rows = same([of.rows, indices.rows])
        if rows.axis >= batch:
            raise NotOwnError
        return rows
    if of.rows:
        if of.rows.axis < batch:
            unless_by_row(of.rows, [indices], len(indices.shape))
        is_behind = of.rows.axis > place
        return replace(of.rows, axis=of.rows.axis + (added - 1) * is_behind)
    if indices.rows is None or indices.rows.axis < batch:
        raise NotOwnError
    return replace(indices.rows, axis=place + indices.rows.axis - batch)


@_rule("ResourceGather")
def _embedding(at: Application) -> Rows:
    return together(at.operands[1:])


@_rule("GatherNd ResourceGatherNd")
def _gather_each(at: Application) -> Rows:
    of, indices = at.operands
    if of.rows is None:
        return apart_from(indices.rows, [-1], len(indices.shape))
    if keeps_or_drops(indices, of.rows, at.rows_of):
        return Rows(0, SELECTED)
    if of.rows != Rows() or not _is_led_by_numbers(indices, at.rows_of):
        raise NotOwnError(Kind.TAKEN)
    return Rows()


@_rule("TensorScatterUpdate TensorScatterAdd TensorScatterMax TensorScatterMin")
def _set_in_each(at: Application) -> Rows:
    of, indices, values = at.operands
    is_one_per_row = of.rows == values.rows == Rows()
    if not is_one_per_row or not _is_led_by_numbers(indices, at.rows_of):
        raise NotOwnError(Kind.TAKEN)
    return Rows()


@_rule("CropAndResize")
def _crop_each(at: Application) -> Rows:
    of, boxes, numbers, size = at.operands
    constants_only([size])
    is_one_per_row = of.rows == boxes.rows == Rows()
    if not is_one_per_row or not is_numbered(numbers.tensor, at.rows_of):
        raise NotOwnError(Kind.TAKEN)
    return Rows()


def _is_led_by_numbers(indices: Operand, rows_of: RowsOf) -> bool:
    """Returns whether there is one index per example, the first of which is its number."""
    op = indices.tensor.op
    if op.type != "Pack" or len(indices.shape) != 2 or not op.get_attr("axis"):
        return False
    others = [rows_of(each) == Rows() for each in list(op.inputs)[1:]]
    return is_numbered(op.inputs[0], rows_of) and all(others)


def is_numbered(tensor: Any, rows_of: RowsOf) -> bool:
    """Returns whether a tensor numbers the examples of the replica: 0, 1, 2, ..."""
    while tensor.op.type in ("Cast", "Identity"):
        tensor = tensor.op.inputs[0]
    if tensor.op.type != "Range":
        return False
    start, limit, step = tensor.op.inputs
    return constant(start) == 0 and constant(step) == 1 and counts(limit, rows_of)


def keeps_or_drops(indices: Operand, rows: Rows, rows_of: RowsOf) -> bool:
    """Returns whether indices are those of a mask of the rows, as in `tf.boolean_mask`.

    A mask keeps or drops each example by itself, wherever it is in the batch.
    """
    if indices.kind is not Kind.POSITIONS or rows.axis:
        return False
    places = indices.tensor
    while places.op.type in ("Squeeze", "Reshape", "Cast", "Identity", "StridedSlice"):
        if places.op.type == "StridedSlice" and not _is_first_column(places.op):
            return False
        places = places.op.inputs[0]
    mask = rows_of(places.op.inputs[0]) if places.op.type == "Where" else None
    return mask is not None and mask == rows


def _is_first_column(op: tf.Operation) -> bool:
    """Returns whether a slice is `places[:, 0]`."""
    begin, strides = constant(op.inputs[1]), constant(op.inputs[3])
    is_all_rows = op.get_attr("begin_mask") & op.get_attr("end_mask") & 1
    is_column = op.get_attr("shrink_axis_mask") == 2 and begin is not None
    return bool(
        is_all_rows and is_column and begin.tolist() == [0, 0] and strides[0] == 1
    )


@_rule("DynamicPartition")
def _partition(at: Application) -> Rows:
    of, parts = at.operands
    if of.rows is None or of.rows != parts.rows or of.rows.axis:
        raise NotOwnError
    return replace(of.rows, order=SELECTED)
