"""An operation of a step, and the rules for what operations do to rows."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.synchronous.fit.kind import CONSTANTS, Kind
from tfdist.synchronous.fit.rows import NotOwnError, Operand, Rows
from tfdist.synchronous.fit.sizes import RowsOf


@dataclass(frozen=True)
class Application:
    """An operation with what is known of its inputs.

    Attributes:
        output: The tensor in question.
        operands: The inputs.
        rows_of: Returns where the rows of any tensor are, or None if it has none.
        kind_of: Returns the kind of any tensor.
        counters: The tensors that are the number of the turn of a loop.
    """

    output: Any
    operands: list[Operand]
    rows_of: RowsOf
    kind_of: Callable[[Any], Kind]
    counters: Collection[Any] = ()

    @property
    def op(self) -> tf.Operation:
        """The operation."""
        return self.output.op

    def is_same_at(self, vector: Operand, place: int) -> bool:
        """Returns whether an element of a vector is known to be a constant."""
        if vector.kind in CONSTANTS:
            return True
        op = vector.tensor.op
        return op.type == "Pack" and self.kind_of(op.inputs[place]) in CONSTANTS

    @property
    def rank(self) -> int:
        """The number of dimensions of the output."""
        if self.output.shape.rank is None:
            raise NotOwnError
        return int(self.output.shape.rank)

    @property
    def shape(self) -> list[int | None]:
        """The static shape of the output."""
        return list(self.output.shape[: self.rank])


Rule = Callable[[Application], Rows]
"""Returns where the rows of an operation's output are, or raises `NotOwnError`."""


class Rules(dict[str, Rule]):
    """Rules by the type of the operation."""

    def of(self, types: str) -> Callable[[Rule], Rule]:
        """Returns a decorator of the rule for some types, separated by spaces."""

        def register(rule: Rule) -> Rule:
            self.update(dict.fromkeys(types.split(), rule))
            return rule

        return register
