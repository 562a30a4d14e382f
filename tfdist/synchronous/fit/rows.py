"""Where the examples are in a tensor, and what is no longer one example's own value.

A row is one example. Each replica has some of the rows, so a value that depends on one
example alone is what it is in one process, and a value that depends on others, or on how
many there are and at which position, is not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tfdist.keras.graph import constant
from tfdist.synchronous.fit.kind import CONSTANTS, Kind

SELECTED = ("selected",)
"""The order of rows that a mask keeps."""


IN_A_LIST = -1
"""The axis of the rows of a list that has an element for each example."""


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
class Known:
    """What is known of a tensor.

    Attributes:
        kind: Its kind.
        rows: Where its rows are, if it is of kind ROWS.
    """

    kind: Kind
    rows: Rows | None = None

    @property
    def is_list_of_examples(self) -> bool:
        """Whether it is a list with an element for each example."""
        return self.rows is not None and self.rows.axis == IN_A_LIST


@dataclass(frozen=True)
class Operand:
    """An input of an operation.

    Attributes:
        tensor: The tensor.
        known: What is known of it.
    """

    tensor: Any
    known: Known

    @property
    def kind(self) -> Kind:
        """Its kind."""
        return self.known.kind

    @property
    def rows(self) -> Rows | None:
        """Where its rows are."""
        return self.known.rows

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
    found = [
        each.rows for each in operands if each.rows and each.tensor.shape.rank == rank
    ]
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
    return unless_by_row(result, [each for each in operands if not each.rows], rank)


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


def unless_by_row(rows: Rows, constants: Sequence[Operand], rank: int) -> Rows:
    """Returns the rows, unless a constant has a value for each of them.

    Such a constant counts the rows from the first one of the replica.

    Raises:
        NotOwnError: If one has.
    """
    for each in constants:
        place = rows.axis - (rank - len(each.shape))
        if place >= 0 and each.shape[place] != 1:
            raise NotOwnError
    return rows
