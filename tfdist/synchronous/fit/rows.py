"""Where the examples are in a tensor, and what is no longer one example's own value.

A row is one example. Each replica has some of the rows, so a value that depends on one
example alone is what it is in one process, and a value that depends on others, or on how
many there are and at which position, is not.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tfdist.keras.graph import constant
from tfdist.synchronous.fit.kind import CONSTANTS, Kind

SELECTED = ("selected",)
"""The order of rows that a mask keeps."""


@dataclass(frozen=True)
class Rows:
    """Where the rows of a tensor are.

    Attributes:
        axis: The axis of the rows.
        order: In which order they are. Empty for one row per example. "each" if an example
            has several, one after the other; "n blocks" if the examples come n times. None
            if the rows are alike, such as ones, so that any order is theirs.
        per_example: The number of rows per example in the order "each"; 0 if it is unknown.
    """

    axis: int = 0
    order: tuple[str, ...] | None = ()
    per_example: int = 1


class NotOwnError(Exception):
    """Values of single examples are combined, or it cannot be shown that they are not.

    Args:
        kind: TAKEN if examples are selected by their position, else MIXED.
    """

    def __init__(self, kind: Kind = Kind.MIXED) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True)
class Operand:
    """An input of an operation.

    Attributes:
        tensor: The tensor.
        kind: Its kind.
        rows: Where its rows are, if it is of kind ROWS.
    """

    tensor: Any
    kind: Kind
    rows: Rows | None = None

    @property
    def shape(self) -> list[int | None]:
        """The static shape.

        Raises:
            NotOwnError: If not even the number of dimensions is known.
        """
        if self.tensor.shape.rank is None:
            raise NotOwnError
        return list(self.tensor.shape)

    @property
    def value(self) -> Any:
        """The value as an array, or None if it is not a constant of the graph."""
        return constant(self.tensor)

    def element(self, place: int) -> Any:
        """Returns an element of a vector if that one is a constant, else None."""
        if self.value is not None:
            return self.value.ravel()[place]
        op = self.tensor.op
        packs = op.type == "Pack" and len(op.inputs) > place
        return constant(op.inputs[place]) if packs else None


def has_rows(tensor: Any) -> bool:
    """Returns whether a tensor has an unknown dimension: that of the examples.

    So may the elements of a list have.
    """
    rank = tensor.shape.rank
    return tensor.dtype == tf.variant or rank is None or None in tensor.shape.as_list()


def somewhere(tensor: Any, operands: Sequence[Operand]) -> Rows:
    """Returns where an operation leaves rows that is known to treat them one by one."""
    rank = tensor.shape.rank
    if rank is None:
        return Rows()
    unknown = [i for i, size in enumerate(tensor.shape.as_list()) if size is None]
    found = [each.rows for each in operands if each.rows]
    # Rows alike, such as ones, say nothing about the order.
    for rows in sorted(found, key=lambda each: each.order is None):
        if rows.axis in unknown:
            return rows
    return Rows(unknown[0] if unknown else 0)


def together(operands: Sequence[Operand], rank: int | None = None) -> Rows:
    """Returns where rows are after they were combined one by one, as in a broadcast.

    Args:
        operands: All that are combined, by their last axes.
        rank: The number of dimensions of the result; that of the operands if None.

    Raises:
        NotOwnError: If a row may meet another example's.
    """
    rows_only(operands)
    ranks = [len(each.shape) for each in operands]
    rank = max(ranks) if rank is None else rank
    found = [
        replace(each.rows, axis=each.rows.axis + rank - own)
        for each, own in zip(operands, ranks, strict=True)
        if each.rows
    ]
    result = same(found)
    for each, own in zip(operands, ranks, strict=True):
        place = result.axis - (rank - own)
        # A constant for each row counts the rows from the first of the replica.
        if not each.rows and place >= 0 and each.shape[place] != 1:
            raise NotOwnError
    return result


def same(found: Sequence[Rows]) -> Rows:
    """Returns the one place and order that rows of several tensors have.

    Raises:
        NotOwnError: If they do not have the same.
    """
    orders = {each.order for each in found} - {None}
    if len({each.axis for each in found}) != 1 or len(orders) > 1:
        raise NotOwnError
    ordered = [each for each in found if each.order is not None]
    return max(ordered or found, key=lambda each: each.per_example)


def rows_only(operands: Sequence[Operand]) -> None:
    """Checks that all operands are rows or constants.

    Raises:
        NotOwnError: If one is a number computed from all rows.
    """
    kinds = {each.kind for each in operands} - CONSTANTS - {Kind.ROWS}
    if kinds:
        is_number = kinds <= {Kind.COUNT, Kind.SHAPE, Kind.POSITIONS}
        raise NotOwnError(Kind.TAKEN if is_number else Kind.MIXED)


def constants_only(operands: Sequence[Operand]) -> None:
    """Checks that all operands are constants.

    Raises:
        NotOwnError: If one is not.
    """
    if any(each.kind not in CONSTANTS for each in operands):
        raise NotOwnError


def apart_from(rows: Rows | None, axes: Sequence[int], rank: int) -> Rows:
    """Returns the rows, unless one of some axes is theirs.

    Raises:
        NotOwnError: If it is.
    """
    if rows is None or rows.axis in [int(axis) % max(rank, 1) for axis in axes]:
        raise NotOwnError
    return rows


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
