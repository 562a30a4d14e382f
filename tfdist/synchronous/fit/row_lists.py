"""Lists of tensors, as loops have them: of rows in each element, or of one example each."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tfdist.synchronous.fit.application import Application, Rules
from tfdist.synchronous.fit.kind import CONSTANTS, Kind
from tfdist.synchronous.fit.rows import (
    IN_A_LIST,
    NotOwnError,
    Rows,
    constants_only,
    rows_only,
    same,
)
from tfdist.synchronous.fit.sizes import counts

LISTS = Rules()
_rule = LISTS.of


@_rule("TensorListReserve")
def _new_list(at: Application) -> Rows:
    _, count = at.operands
    if not counts(count.tensor, at.rows_of):
        raise NotOwnError
    return Rows(IN_A_LIST, None)


@_rule("TensorListFromTensor")
def _list_of(at: Application) -> Rows:
    rows = at.operands[0].rows
    if rows is None or not (rows.axis or rows == Rows()):
        raise NotOwnError
    return replace(rows, axis=rows.axis - 1)


@_rule("TensorListGetItem")
def _item(at: Application) -> Rows:
    constants_only(at.operands[1:2])
    rows = at.operands[0].rows
    if rows is None:
        raise NotOwnError
    return rows


@_rule("TensorListSetItem")
def _with_item(at: Application) -> Rows:
    of, index, item = at.operands[:3]
    if of.known.is_list_of_examples:
        is_own = is_turn(index.tensor, at.counters)
        if not is_own or item.kind not in CONSTANTS | {Kind.EXAMPLE}:
            raise NotOwnError
        return Rows(IN_A_LIST)
    constants_only([index])
    rows_only([of, item])
    return same([each.rows for each in (of, item) if each.rows])


def is_turn(index: Any, counters: Collection[Any]) -> bool:
    """Returns whether an index is the number of a loop's turn."""
    while index.op.type in ("Identity", "Cast"):
        index = index.op.inputs[0]
    return index.ref() in counters


@_rule("TensorListStack")
def _stack_of_list(at: Application) -> Rows:
    constants_only(at.operands[1:])
    rows = at.operands[0].rows
    if rows is None:
        raise NotOwnError
    return replace(rows, axis=rows.axis + 1)
