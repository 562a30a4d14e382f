"""Reductions of sums, products and quotients of numbers without rows."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.authors import is_apart
from tfdist.synchronous.reader.reduction import (
    CONSTANTS,
    PRODUCTS,
    QUOTIENTS,
    UNARY,
    Reduction,
    of_product,
    of_quotient,
    of_sum,
    summands,
)
from tfdist.synchronous.reader.rows import KindOf


def combined(
    tensor: tf.Tensor, pairs: list[tuple[tf.Tensor, Reduction]], kind_of: KindOf
) -> Reduction:
    """Returns the kind of an operation's result on numbers without rows.

    Args:
        tensor: The result.
        pairs: The inputs with their kinds, which are not all constants.
        kind_of: Returns the kind of any tensor.
    """
    op = tensor.op
    kinds = [kind for _, kind in pairs]
    if op.type == "IdentityN":
        # What a gradient of the program's own does with the number is not known.
        is_own = _tf.has_custom_gradient(op) and not is_apart(op)
        return Reduction.UNKNOWN if is_own else kinds[tensor.value_index]
    if op.type == "Cast" and _is_rounded(op):
        return Reduction.OTHER
    if op.type in UNARY:
        return kinds[0] if set(kinds[1:]) <= CONSTANTS else Reduction.OTHER
    if added := summands(op.type, len(pairs)):
        rest = {kind for i, kind in enumerate(kinds) if i not in added}
        terms = [pairs[i] for i in added]
        return _sum(terms) if rest <= CONSTANTS else Reduction.OTHER
    if op.type in PRODUCTS:
        return of_product(kinds)
    if op.type == "Prod" and pairs[0][0].op.type == "Pack":
        # The size of a shape with one unknown dimension.
        return of_product([kind_of(each) for each in pairs[0][0].op.inputs])
    if op.type in QUOTIENTS:
        return of_quotient(*kinds)
    if op.type == "Maximum" and Reduction.COUNT in kinds:
        # max(n, 1) is n: no batch is empty.
        others = [each for each, kind in pairs if kind is not Reduction.COUNT]
        is_size = all(_is_constant(each, lambda value: value <= 1) for each in others)
        return Reduction.COUNT if is_size else Reduction.OTHER
    return Reduction.OTHER


def _is_rounded(cast: tf.Operation) -> bool:
    """Returns True if a cast truncates, so the cast of a sum is no sum of casts."""
    return cast.inputs[0].dtype.is_floating and not cast.outputs[0].dtype.is_floating


def _sum(pairs: Iterable[tuple[tf.Tensor, Reduction]]) -> Reduction:
    # Python's `sum` starts with 0, which changes no kind.
    return of_sum(
        kind
        for each, kind in pairs
        if kind not in CONSTANTS or not _is_constant(each, lambda value: value == 0)
    )


def _is_constant(tensor: tf.Tensor, holds: Callable[[Any], Any]) -> bool:
    """Returns True if all elements are constants of which something holds."""
    value = tf.get_static_value(tensor)
    return value is not None and bool(holds(value).all())
