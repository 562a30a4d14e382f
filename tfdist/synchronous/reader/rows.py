"""The examples in a tensor, and what is no longer one example's own value.

A row is one example, along the first axis of its tensor: what puts the rows along another
one is refused. Each replica has some of the rows, so a value that depends on one
example alone is what it is in one process, and a value that depends on others, or on how
many there are and at which position, is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.keras.graph import constant
from tfdist.synchronous.reader.reduction import CONSTANTS, Reduction

Order = tuple[str | int, ...] | None
"""The order of rows: see `Rows`."""


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor, along its first axis.

    Attributes:
        order: In which order they are. Empty for one row per example. ("each", n) if an
            example has n, one after the other, and 0 if n is unknown; ("blocks", n) if the
            examples come n times. None if the rows are alike, such as ones, so that any
            order is theirs.
    """

    order: Order = ()


KindOf = Callable[[tf.Tensor], Reduction]
"""Returns the kind of a tensor."""

RowsOf = Callable[[tf.Tensor], Rows | None]
"""Returns the rows of a tensor, or None if it has none."""


class NotOwnError(Exception):
    """Values of single examples are combined, or it cannot be shown that they are not.

    Args:
        kind: TAKEN if examples are selected by their position, else MIXED.
    """

    def __init__(self, kind: Reduction = Reduction.MIXED) -> None:
        super().__init__(kind)
        self.kind = kind


def require(holds: bool, kind: Reduction = Reduction.MIXED) -> None:
    """Raises a `NotOwnError` of a kind unless something holds."""
    if not holds:
        raise NotOwnError(kind)


@dataclass(frozen=True)
class Operand:
    """An input of an operation."""

    tensor: tf.Tensor
    kind: Reduction
    rows: Rows | None

    @property
    def shape(self) -> list[int | None]:
        """The static shape; a `NotOwnError` if not even the number of axes is known."""
        require(self.tensor.shape.rank is not None)
        return list(self.tensor.shape)

    def axes(self) -> list[int]:
        """Returns the elements of a constant; a `NotOwnError` for anything else."""
        value = constant(self.tensor)
        require(value is not None)
        return [int(each) for each in value.ravel()]

    def element(self, place: int) -> Any:
        """Returns an element of a vector if that one is a constant, else None."""
        value = constant(self.tensor)
        if value is not None:
            return value.ravel()[place]
        op = self.tensor.op
        packs = op.type == "Pack" and len(op.inputs) > place
        return constant(op.inputs[place]) if packs else None


@dataclass(frozen=True)
class Application:
    """An operation with what is known of its inputs.

    Attributes:
        output: The tensor in question.
        operands: The inputs.
        rows_of: Returns the rows of any tensor, or None if it has none.
        kind_of: Returns the kind of any tensor.
    """

    output: tf.Tensor
    operands: list[Operand]
    rows_of: RowsOf
    kind_of: KindOf

    @property
    def op(self) -> tf.Operation:
        """The operation."""
        return self.output.op

    @property
    def rank(self) -> int:
        """The number of dimensions of the output."""
        require(self.output.shape.rank is not None)
        return int(self.output.shape.rank)

    def is_same_at(self, vector: Operand, place: int) -> bool:
        """Returns True if an element of a vector is known to be a constant."""
        if vector.kind in CONSTANTS:
            return True
        op = vector.tensor.op
        return op.type == "Pack" and self.kind_of(op.inputs[place]) in CONSTANTS

    def rows_at(self, place: int = 0, but: int | None = None) -> Rows:
        """Returns the rows of an input, while all others but one are constants."""
        constants_only(
            [o for i, o in enumerate(self.operands) if i not in (place, but)]
        )
        rows = self.operands[place].rows
        if rows is None:
            raise NotOwnError
        return rows


Rule = Callable[..., Rows | None]
"""Returns where the rows of an operation's output are; a `NotOwnError` if they meet.

None if they are all alike, along another axis than the first.
"""


class Rules(dict[str, Rule]):
    """The rule for each type of operation."""

    def of(self, types: str, *places: int | str | Reduction) -> Callable[[Rule], Rule]:
        """Returns a decorator of the rule for some types, separated by spaces.

        Args:
            types: The types.
            places: Further arguments of the rule for these types, such as the place of the
                input that has the rows.
        """

        def register(rule: Rule) -> Rule:
            self.update(dict.fromkeys(types.split(), lambda at: rule(at, *places)))
            return rule

        return register


def has_rows(tensor: tf.Tensor) -> bool:
    """Returns True if a tensor has an unknown dimension, the one of the examples.

    The elements of a list may have one, too.
    """
    rank = tensor.shape.rank
    return tensor.dtype == tf.variant or rank is None or None in tensor.shape.as_list()


def kept_apart(at: Application) -> Rows | None:
    """Returns the rows of what is known to treat them one by one; None on another axis."""
    shape = at.output.shape
    if shape.rank and shape[0] is not None:
        return None
    found = [
        o.rows for o in at.operands if o.rows and o.tensor.shape.rank == shape.rank
    ]
    # Rows alike, such as ones, say nothing about the order.
    return min(found, key=lambda each: each.order is None, default=Rows())


def together(operands: Sequence[Operand], rank: int) -> Rows:
    """Returns the rows of tensors that were combined one by one, by their last axes."""
    rows = common(operands)
    require(all(len(each.shape) == rank for each in operands if each.rows))
    return unless_by_row(rows, operands, rank)


def common(operands: Sequence[Operand]) -> Rows:
    """Returns the one order that rows of tensors have. All others must be constants."""
    rows_only(operands)
    found = [each.rows for each in operands if each.rows]
    orders = {each.order for each in found} - {None}
    require(bool(found) and len(orders) <= 1)
    return Rows(orders.pop() if orders else None)


def rows_only(operands: Sequence[Operand]) -> None:
    """Checks that no operand is a number computed from all rows, or has them elsewhere."""
    kinds = {each.kind for each in operands} - CONSTANTS - {Reduction.ROWS}
    is_number = kinds <= {Reduction.COUNT, Reduction.SHAPE}
    require(not kinds, Reduction.TAKEN if is_number else Reduction.MIXED)
    require(all(each.rows for each in operands if each.kind is Reduction.ROWS))


def constants_only(operands: Sequence[Operand]) -> None:
    """Checks that all operands are constants."""
    require(all(each.kind in CONSTANTS for each in operands))


def unless_by_row(rows: Rows, operands: Sequence[Operand], rank: int) -> Rows:
    """Returns the rows, unless a constant has a value for each of them.

    Such a constant counts the rows from the first one of the replica.
    """
    found = [each.shape for each in operands if each.rows is None]
    require(all(shape[0] == 1 for shape in found if len(shape) == rank))
    return rows


def check_spared(
    axes: Sequence[int], rank: int, kind: Reduction = Reduction.MIXED
) -> None:
    """Checks that an operation does not work along the axis of the rows."""
    require(all(axis % rank for axis in axes), kind)
