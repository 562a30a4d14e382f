"""Operations that move rows to other axes, and copy them."""

from dataclasses import replace
from typing import Any

from tfdist.synchronous.fit.application import Application, Rules
from tfdist.synchronous.fit.kind import CONSTANTS, Kind
from tfdist.synchronous.fit.reshape import reshaped
from tfdist.synchronous.fit.rows import (
    NotOwnError,
    Operand,
    Rows,
    constants_only,
    rows_only,
    same,
    together,
    unless_by_row,
)
from tfdist.synchronous.fit.sizes import EXAMPLES, sizes

MOVEMENT = Rules()
_rule = MOVEMENT.of


@_rule("Reshape")
def _reshape(at: Application) -> Rows:
    of, shape = at.operands
    found = sizes(shape.tensor, at.rows_of) or [None] * at.rank
    if EXAMPLES in found[1:] or not _is_of_shapes(shape.tensor, at):
        raise NotOwnError
    new = [
        size if static is None and isinstance(size, int) and size >= 0 else static
        for size, static in zip(found, at.shape, strict=True)
    ]
    return reshaped(of, shape, new, is_counted=found[0] == EXAMPLES)


def _is_of_shapes(tensor: Any, at: Application) -> bool:
    """Returns whether a shape is computed from constants and shapes, not from values."""
    kind = at.kind_of(tensor)
    if kind is Kind.OTHER:
        return all(_is_of_shapes(each, at) for each in tensor.op.inputs)
    return kind in CONSTANTS | {Kind.COUNT, Kind.SHAPE}


@_rule("Transpose ConjugateTranspose")
def _transpose(at: Application) -> Rows:
    of, order = at.operands
    if of.rows is None or order.value is None:
        raise NotOwnError
    return replace(of.rows, axis=order.value.tolist().index(of.rows.axis))


@_rule("ExpandDims")
def _expand(at: Application) -> Rows:
    of, axis = at.operands
    if of.rows is None or axis.value is None:
        raise NotOwnError
    place = int(axis.value.ravel()[0]) % at.rank
    return replace(of.rows, axis=of.rows.axis + (place <= of.rows.axis))


@_rule("Squeeze")
def _squeeze(at: Application) -> Rows:
    (of,) = at.operands
    rank = len(of.shape)
    axes = [axis % rank for axis in at.op.get_attr("squeeze_dims")]
    if of.rows is None or not axes or of.rows.axis in axes:
        raise NotOwnError
    return replace(of.rows, axis=of.rows.axis - sum(a < of.rows.axis for a in axes))


@_rule("ConcatV2")
def _concat(at: Application) -> Rows:
    *parts, axis = at.operands
    if axis.value is None:
        raise NotOwnError
    place = int(axis.value) % at.rank
    rows_only(parts)
    rows = same([each.rows for each in parts if each.rows])
    if place != rows.axis:
        return unless_by_row(rows, [p for p in parts if not p.rows], at.rank)
    if any(each.rows is None for each in parts):
        raise NotOwnError(Kind.TAKEN)
    if len(parts) == 1:
        return rows
    return Rows(rows.axis, (*(rows.order or ()), f"{len(parts)} blocks"))


@_rule("Pack")
def _pack(at: Application) -> Rows:
    rows = together(at.operands, at.rank - 1)
    place = int(at.op.get_attr("axis")) % at.rank
    return replace(rows, axis=rows.axis + (place <= rows.axis))


@_rule("Pad PadV2 MirrorPad")
def _pad(at: Application) -> Rows:
    of, padding = at.operands[:2]
    constants_only(at.operands[2:])
    if of.rows is None:
        raise NotOwnError
    if padding.value is None or padding.value[of.rows.axis].any():
        raise NotOwnError
    return of.rows


@_rule("Tile")
def _tile(at: Application) -> Rows:
    of, times = at.operands
    if of.rows is None:
        return _spread(at)
    count = times.element(of.rows.axis)
    constants_only([times])
    if count == 1:
        return of.rows
    blocks = (*(of.rows.order or ()), f"{count} blocks")
    return Rows(of.rows.axis, None if of.rows.order is None else blocks)


@_rule("BroadcastTo")
def _broadcast(at: Application) -> Rows:
    of, _ = at.operands
    return together([of], at.rank) if of.rows else _spread(at)


def _spread(at: Application) -> Rows:
    """Returns where the rows are to which one constant was copied."""
    of, shape = at.operands
    constants_only([of])
    rows = _counted(at, shape)
    return unless_by_row(rows, [of], at.rank)


@_rule("""
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
    place = 2 if at.op.type.startswith("Stateful") else 0
    shape = at.operands[place]
    constants_only([each for i, each in enumerate(at.operands) if i != place])
    if shape.kind not in (Kind.SHAPE, Kind.COUNT, Kind.OTHER):
        raise NotOwnError
    if at.op.type.startswith("Stateless") and _from_constants(at.operands[1].tensor):
        # The same numbers on every replica, which one process has for its first rows only.
        raise NotOwnError(Kind.TAKEN)
    return _counted(at, shape)


def _from_constants(tensor: Any) -> bool:
    """Returns whether a seed is a constant, so that numbers follow from positions."""
    pending = [tensor]
    while pending:
        each = pending.pop()
        if each.op.type in ("ReadVariableOp", "Placeholder", "VarHandleOp"):
            return False
        pending += list(each.op.inputs)
    return True


def _counted(at: Application, shape: Operand) -> Rows:
    op = shape.tensor.op
    if op.type == "Shape" and (measured := at.rows_of(op.inputs[0])):
        return replace(measured, order=None)
    found = sizes(shape.tensor, at.rows_of) or []
    if EXAMPLES in found:
        return Rows(found.index(EXAMPLES), None)
    unknown = [i for i, size in enumerate(at.shape) if size is None]
    if len(unknown) != 1:
        raise NotOwnError
    return Rows(unknown[0], None)
