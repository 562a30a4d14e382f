"""Rules for rows in operations that move, cut, join or make tensors."""

from math import prod
from typing import Any

from tfdist.keras.graph import inputs_of
from tfdist.synchronous.reader.reduction import CONSTANTS, Reduction
from tfdist.synchronous.reader.rows import (
    Application,
    NotOwnError,
    Operand,
    Rows,
    Rules,
    check_spared,
    constants_only,
    rows_only,
    same,
    together,
    unless_by_row,
)
from tfdist.synchronous.reader.sizes import EXAMPLES, sizes

RULES = Rules()
"""Part of those of `row_rules`."""


@RULES.of("Transpose ConjugateTranspose")
def _transpose(at: Application) -> Rows:
    if at.operands[1].axes()[0]:
        raise NotOwnError
    return at.rows_at(0)


@RULES.of("ExpandDims OneHot Pack")
def _with_another_axis(at: Application) -> Rows:
    is_expand = at.op.type == "ExpandDims"
    place = at.operands[1].axes()[0] if is_expand else at.op.get_attr("axis")
    check_spared([place], at.rank)
    return together(at.operands, at.rank - 1) if at.op.type == "Pack" else at.rows_at(0)


@RULES.of("Squeeze")
def _squeeze(at: Application) -> Rows:
    axes = at.op.get_attr("squeeze_dims")
    # Without axes, a batch of one example would lose its own.
    if not axes:
        raise NotOwnError
    check_spared(axes, len(at.operands[0].shape))
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
    if not new or new[0]:
        raise NotOwnError
    if rows.order is None and set(own) <= {1}:
        # Equal numbers, in whatever shape.
        return rows
    if found[0] == EXAMPLES and _is_single(rows.order):
        return Rows()
    return Rows(_regrouped(rows.order, own, new[1:]))


def _is_of_shapes(tensor: Any, at: Application) -> bool:
    """Returns True if a shape is computed from constants and shapes, not values."""
    kind = at.kind_of(tensor)
    if kind in (Reduction.LINEAR, Reduction.OTHER):
        inputs = inputs_of(tensor)
        return bool(inputs) and all(_is_of_shapes(each, at) for each in inputs)
    return kind in CONSTANTS | {Reduction.COUNT, Reduction.SHAPE}


def _regrouped(order: Any, own: list[int | None], new: list[int | None]) -> Any:
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


def _is_single(order: Any) -> bool:
    """Returns True if all rows of an example are one after the other."""
    return order == () or (order is not None and order[0] == "each" and order[2:] == ())


@RULES.of("ConcatV2")
def _concat(at: Application) -> Rows:
    *parts, axis = at.operands
    (place,) = axis.axes()
    rows_only(parts)
    rows = same([each.rows for each in parts if each.rows])
    if place % at.rank:
        return unless_by_row(rows, parts, at.rank)
    if any(each.rows is None for each in parts):
        raise NotOwnError(Reduction.TAKEN)
    return _in_blocks(rows, len(parts))


def _in_blocks(rows: Rows, count: int) -> Rows:
    """Returns rows that come `count` times, one block after the other."""
    if count == 1:
        return rows
    return Rows((*(rows.order or ()), "blocks", count))


@RULES.of("Pad PadV2 MirrorPad")
def _pad(at: Application) -> Rows:
    # The first two numbers are those of the axis of the rows.
    if any(at.operands[1].axes()[:2]):
        raise NotOwnError
    return at.rows_at(0)


def _axis_of_copies(tensor: Any, at: Application) -> int:
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
    if count is None:
        raise NotOwnError
    # Copies of rows that are alike are as many more of them.
    return of.rows if of.rows.order is None else _in_blocks(of.rows, int(count))


@RULES.of("""
    Fill RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt
    StatelessRandomUniform StatelessRandomNormal StatelessTruncatedNormal
    StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2
    StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2 StatelessRandomGetKeyCounter StatefulUniform
    StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniformInt
    ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 StatelessRandomGammaV3
    StatelessRandomBinomial
""")
def _made(at: Application) -> Rows:
    """Returns where rows are that are all alike, and whose number a shape gives."""
    # The generator and its algorithm come before the shape.
    place = 2 if at.op.type.startswith("Stateful") else 0
    shape = at.operands[place]
    constants_only([each for i, each in enumerate(at.operands) if i != place])
    return _counted(at, shape)


def _counted(at: Application, shape: Operand) -> Rows:
    op = shape.tensor.op
    if not _is_of_shapes(shape.tensor, at) or shape.kind in CONSTANTS:
        raise NotOwnError
    if op.type == "Shape" and at.rows_of(op.inputs[0]):
        return Rows(None)
    found = sizes(shape.tensor, at.rows_of) or []
    unknown = [i for i, size in enumerate(at.output.shape) if size is None]
    if EXAMPLES in found[1:] or (found[:1] != [EXAMPLES] and unknown != [0]):
        raise NotOwnError
    return Rows(None)


@RULES.of("Range")
def _numbered(at: Application) -> Rows:
    raise NotOwnError(Reduction.TAKEN)


# The places of what is divided, and of the axis; an Unpack has that as an attribute.
_DIVIDED: dict[str, tuple[int, int | None]]
_DIVIDED = {"Unpack": (0, None), "Split": (1, 0), "SplitV": (0, 2)}


@RULES.of(" ".join(_DIVIDED))
def _divided(at: Application) -> Rows:
    of, axis = _DIVIDED[at.op.type]
    rows = at.rows_at(of)
    place = at.op.get_attr("axis") if axis is None else at.operands[axis].axes()[0]
    check_spared([place], len(at.operands[of].shape), Reduction.TAKEN)
    return rows


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
    if new[0] or (ellipsis[0] and not covered):
        raise NotOwnError
    for i in range(count):
        if ellipsis[i] or new[i]:
            continue
        if i == 0:
            starts = from_start[i] or begin.element(i) == 0
            # All rows in their order: whatever else there is selects by position.
            if one[i] or strides.element(i) != 1 or not (starts and to_end[i]):
                raise NotOwnError(Reduction.TAKEN)
        else:
            edges = [(begin, from_start[i]), (end, to_end[i]), (strides, False)]
            if not all(is_open or at.is_same_at(edge, i) for edge, is_open in edges):
                raise NotOwnError
    return of.rows


@RULES.of("GatherV2")
def _gather(at: Application) -> Rows:
    of, indices, axis = at.operands
    batch, place = at.op.get_attr("batch_dims"), axis.axes()[0] % len(of.shape)
    if of.rows and not place:
        raise NotOwnError(
            Reduction.TAKEN if indices.kind in CONSTANTS else Reduction.MIXED
        )
    rows_only([of, indices])
    if of.rows is None and (batch or place):
        raise NotOwnError
    if of.rows and indices.rows and not batch:
        raise NotOwnError
    rows = same([each.rows for each in (of, indices) if each.rows])
    return unless_by_row(rows, [indices], len(indices.shape)) if batch else rows
