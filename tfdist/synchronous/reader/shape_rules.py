"""Rules for rows in operations that move, cut, join or make tensors."""

from math import prod
from typing import Any

import tensorflow as tf

from tfdist.keras.graph import inputs_of
from tfdist.synchronous.reader.reduction import CONSTANTS, Reduction
from tfdist.synchronous.reader.rows import (
    Application,
    NotOwnError,
    Operand,
    Order,
    Rows,
    Rules,
    check_spared,
    common,
    constants_only,
    require,
    together,
    unless_by_row,
)
from tfdist.synchronous.reader.sizes import EXAMPLES, sizes

RULES = Rules()
"""Part of those of `row_rules`."""


@RULES.of("Transpose ConjugateTranspose", 1)
@RULES.of("Pad PadV2 MirrorPad", 2)
def _first_axis_kept(at: Application, count: int) -> Rows:
    # The first numbers are the place, or the padding, of the axis of the rows.
    require(not any(at.operands[1].axes()[:count]))
    return at.rows_at(0)


@RULES.of("ExpandDims", 0, 1)
@RULES.of("OneHot", 0, "axis")
@RULES.of("Cumsum Cumprod CumulativeLogsumexp ReverseV2 Roll", 0, -1)
@RULES.of("Sum Mean Max Min Prod All Any EuclideanNorm ArgMax ArgMin", 0, -1)
@RULES.of("Unpack", 0, "axis", Reduction.TAKEN)
@RULES.of("Split", 1, 0, Reduction.TAKEN)
@RULES.of("SplitV", 0, 2, Reduction.TAKEN)
def _along_other_axes(
    at: Application, of: int, axes: int | str, kind: Reduction = Reduction.MIXED
) -> Rows:
    """Returns the rows of an input, unless the operation works along their axis.

    Args:
        at: The operation.
        of: The place of the input.
        axes: The place of the axes, or the attribute that has the axis.
        kind: The kind of the result if one of them is the axis of the rows.
    """
    rows, rank = at.rows_at(of), max(at.rank, len(at.operands[of].shape))
    found = (
        [at.op.get_attr(axes)] if isinstance(axes, str) else at.operands[axes].axes()
    )
    check_spared(found, rank, kind)
    return rows


@RULES.of("Pack")
def _pack(at: Application) -> Rows:
    check_spared([at.op.get_attr("axis")], at.rank)
    return together(at.operands, at.rank - 1)


@RULES.of("Squeeze")
def _squeeze(at: Application) -> Rows:
    # Without axes, a batch of one example would lose its own.
    check_spared(at.op.get_attr("squeeze_dims") or [0], len(at.operands[0].shape))
    return at.rows_at(0)


@RULES.of("Reshape")
def _reshape(at: Application) -> Rows:
    of, shape = at.operands
    rows, own, output = of.rows, of.shape[1:], list(at.output.shape[: at.rank])
    if axis := _axis_of_copies(of.tensor, at):
        rows, own = Rows(None), of.shape[axis + 1 :]
    found = sizes(shape.tensor, at.rows_of) or [None] * at.rank
    if rows is None or EXAMPLES in found[1:] or not _is_of_shapes(shape.tensor, at):
        raise NotOwnError
    new = [
        size if static is None and isinstance(size, int) and size >= 0 else static
        for size, static in zip(found, output, strict=True)
    ]
    require(bool(new) and not new[0])
    if rows.order is None and set(own) <= {1}:
        # Equal numbers, in whatever shape.
        return rows
    if found[0] == EXAMPLES and _is_single(rows.order):
        return Rows()
    return Rows(_regrouped(rows.order, own, new[1:]))


def _is_of_shapes(tensor: tf.Tensor, at: Application) -> bool:
    """Returns True if a shape is computed from constants and shapes, not values."""
    kind = at.kind_of(tensor)
    if kind in (Reduction.LINEAR, Reduction.OTHER):
        inputs = inputs_of(tensor)
        return bool(inputs) and all(_is_of_shapes(each, at) for each in inputs)
    return kind in CONSTANTS | {Reduction.COUNT, Reduction.SHAPE}


def _regrouped(order: Any, own: list[int | None], new: list[int | None]) -> Order:
    """Returns the order of rows that were reshaped along other axes than theirs.

    An unknown size besides that of the rows is taken for the same on both sides.
    """
    if own == new:
        return order
    values, wanted = (prod(1 if n is None else n for n in each) for each in (own, new))
    if _is_single(order) and None not in [*own, *new] and order != ("each", 0):
        values *= order[1] if order else 1
        if wanted and not values % wanted:
            return () if values == wanted else ("each", values // wanted)
    elif own.count(None) == new.count(None) and values == wanted:
        return order
    elif _is_single(order) and None in own and new == own[len(own) - len(new) :]:
        return ("each", 0)
    raise NotOwnError


def _is_single(order: Order) -> bool:
    """Returns True if all rows of an example are one after the other."""
    return order == () or (order is not None and order[0] == "each" and order[2:] == ())


@RULES.of("ConcatV2")
def _concat(at: Application) -> Rows:
    *parts, axis = at.operands
    (place,) = axis.axes()
    rows = common(parts)
    if place % at.rank:
        return unless_by_row(rows, parts, at.rank)
    require(all(each.rows for each in parts), Reduction.TAKEN)
    return _in_blocks(rows, len(parts))


def _in_blocks(rows: Rows, count: int) -> Rows:
    """Returns rows that come `count` times, one block after the other."""
    return rows if count == 1 else Rows((*(rows.order or ()), "blocks", count))


def _axis_of_copies(tensor: tf.Tensor, at: Application) -> int:
    """Returns the axis along which a constant is copied once per example, or 0.

    All axes before it have one element, as where `tf.repeat` copies the only row: nothing
    but a reshape makes rows of those copies.
    """
    if tensor.op.type not in ("Tile", "BroadcastTo"):
        return 0
    (of, shape), sizes = tensor.op.inputs, list(tensor.shape)
    axis = sizes.index(None) if sizes.count(None) == 1 else 0
    is_one = set(sizes[:axis]) == {1} and of.shape[axis - len(sizes) :][:1] == [1]
    is_same = at.kind_of(of) in CONSTANTS and _is_of_shapes(shape, at)
    return axis if is_one and is_same else 0


@RULES.of("Tile BroadcastTo")
def _copied(at: Application) -> Rows | None:
    of, shape = at.operands
    if _axis_of_copies(at.output, at):
        return None
    if of.rows is None:
        constants_only([of])
        return unless_by_row(_counted(at, shape), [of], at.rank)
    if at.op.type == "BroadcastTo":
        return together([of], at.rank)
    constants_only([shape])
    count = shape.element(0)
    require(count is not None)
    # Copies of rows that are alike are as many more of them.
    return of.rows if of.rows.order is None else _in_blocks(of.rows, int(count))


@RULES.of("""
    Fill RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt
    StatelessRandomUniform StatelessRandomNormal StatelessTruncatedNormal
    StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2
    StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2 StatelessRandomGetKeyCounter
    ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 StatelessRandomGammaV3
    StatelessRandomBinomial
""")
# The generator and its algorithm come before the shape.
@RULES.of("StatefulUniform StatefulStandardNormalV2", 2)
@RULES.of("StatefulTruncatedNormal StatefulUniformInt", 2)
def _made(at: Application, place: int = 0) -> Rows:
    """Returns where rows are that are all alike, and whose number a shape gives."""
    shape = at.operands[place]
    constants_only([each for i, each in enumerate(at.operands) if i != place])
    return _counted(at, shape)


def _counted(at: Application, shape: Operand) -> Rows:
    op = shape.tensor.op
    require(_is_of_shapes(shape.tensor, at) and shape.kind not in CONSTANTS)
    if op.type == "Shape" and at.rows_of(op.inputs[0]):
        return Rows(None)
    found = sizes(shape.tensor, at.rows_of) or []
    unknown = [i for i, size in enumerate(at.output.shape) if size is None]
    require(EXAMPLES not in found[1:] and (found[:1] == [EXAMPLES] or unknown == [0]))
    return Rows(None)


@RULES.of("StridedSlice")
def _strided_slice(at: Application) -> Rows:
    of, begin, end, strides = at.operands
    count = begin.shape[0]
    if of.rows is None or count is None:
        raise NotOwnError(Reduction.TAKEN)
    from_start, to_end, ellipsis, new, one = (
        [bool(at.op.get_attr(f"{name}_mask") >> i & 1) for i in range(count)]
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    )
    covered = len(of.shape) - count + sum(map(max, ellipsis, new))
    # An ellipsis may stand for no axis, and leave that of the rows to the next index.
    require(not new[0] and (bool(covered) or not ellipsis[0]))
    if not ellipsis[0]:
        starts = from_start[0] or begin.element(0) == 0
        # All rows in their order: whatever else there is selects by position.
        is_whole = starts and to_end[0] and not one[0]
        require(is_whole and strides.element(0) == 1, Reduction.TAKEN)
    for i in range(1, count):
        edges = [(begin, from_start[i]), (end, to_end[i]), (strides, False)]
        are_same = (is_open or at.is_same_at(edge, i) for edge, is_open in edges)
        require(ellipsis[i] or new[i] or all(are_same))
    return of.rows


@RULES.of("GatherV2")
def _gather(at: Application) -> Rows:
    of, indices, axis = at.operands
    batch, place = at.op.get_attr("batch_dims"), axis.axes()[0] % len(of.shape)
    is_taken = indices.kind in CONSTANTS
    require(not of.rows or place != 0, Reduction.TAKEN if is_taken else Reduction.MIXED)
    rows = common([of, indices])
    if of.rows is None:
        require(not batch and not place)
    require(bool(batch) or not (of.rows and indices.rows))
    return unless_by_row(rows, [indices], len(indices.shape)) if batch else rows
