"""Where the examples are after a reshape."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from tfdist.synchronous.fit.kind import CONSTANTS, Kind
from tfdist.synchronous.fit.rows import NotOwnError, Operand, Rows


def reshaped(
    of: Operand, shape: Operand, output: list[int | None], is_counted: bool
) -> Rows:
    """Returns where rows are after a reshape.

    Args:
        of: What is reshaped.
        shape: The new shape, as a tensor.
        output: As far as it is known when the step is traced.
        is_counted: Whether the first element of the new shape is the number of examples.

    Raises:
        NotOwnError: If a new row may hold values of several examples.
    """
    rows, before = of.rows, of.shape
    if rows is None or shape.kind not in CONSTANTS | {
        Kind.COUNT,
        Kind.SHAPE,
        Kind.OTHER,
    }:
        raise NotOwnError
    ahead = before[: rows.axis]
    # Axes of size 1 ahead of the rows neither move nor mix them.
    if all(size == 1 for size in ahead):
        leading = len(list(itertools.takewhile(lambda size: size == 1, output)))
    elif output[: rows.axis] == ahead and None not in ahead:
        leading = rows.axis
    else:
        raise NotOwnError
    if len(output) <= leading or output[leading] is not None:
        raise NotOwnError
    own, new = before[rows.axis + 1 :], output[leading + 1 :]
    moved = replace(rows, axis=leading)
    if is_counted and not leading and rows.order in ((), ("each",)):
        return Rows()
    if own == new and None not in own:
        return moved
    if None in own or None in new or not rows.per_example:
        return _of_unknown_size(moved, own, new)
    return _of_known_size(moved, _product(own), _product(new))


def _of_known_size(rows: Rows, own: int, new: int) -> Rows:
    if rows.order == ("each",):
        return _each(rows.axis, own * rows.per_example, new)
    if rows.order == ():
        return _each(rows.axis, own, new)
    if own != new:
        raise NotOwnError
    return rows


def _each(axis: int, values: int, new: int) -> Rows:
    """Returns the rows of `new` values each into which an example's are divided."""
    if not new or values % new:
        raise NotOwnError
    count = values // new
    return Rows(axis) if count == 1 else Rows(axis, ("each",), count)


def _of_unknown_size(rows: Rows, own: list[int | None], new: list[int | None]) -> Rows:
    # An unknown size besides that of the rows is taken for the same on both sides.
    is_same = own.count(None) == new.count(None)
    if is_same and _product(own) == _product(new) and rows.per_example:
        return rows
    is_flatter = len(new) < len(own) and own[len(own) - len(new) :] == new
    if rows.order in ((), ("each",)) and is_flatter:
        return Rows(rows.axis, ("each",), 0)
    if rows.order == ("each",) and None not in own and own == new:
        return rows
    raise NotOwnError


def _product(sizes: Sequence[int | None]) -> int:
    result = 1
    for size in sizes:
        result *= 1 if size is None else size
    return result
