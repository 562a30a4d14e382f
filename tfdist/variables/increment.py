"""Decides which assignments of a step are increments, from how they are computed.

The *view* is what the step read of the variable. With `d` any tensor:

| the value assigned                   | what is applied                              |
| ------------------------------------ | -------------------------------------------- |
| `view + d`, `view - d`               | `+= d`, `-= d`; exact, the view is not moved  |
| `b * view + d`, b a known constant   | `+= value - view`, if W (1 - b) < 1/2        |
| `view * d`, `view / d`, if trainable | `+= value - view`                            |
| `max(view, d)`, `min`, if trainable  | `+= value - view`; also `max(min(view, d), e)` |
| anything else                        | `= value`: the last writer wins              |

The first row covers counters, metrics and weight decay. The second covers moving
averages and momentum: the sum of W workers' increments keeps all of them and cannot
overshoot (it moves the value at most half the way to what they saw). The third and
fourth cover the projections of weight constraints, which must not undo another worker's
gradient. Anything else (a statistic's maximum, a choice, a recomputed value) has no
increment: adding differences could leave a value that no worker wrote.
"""

import tensorflow as tf

from tfdist._support.errors import RefusalError
from tfdist._support.walks import reached

_SUMS = frozenset({"Add", "AddV2", "Sub"})
_PROJECTIONS = frozenset(
    {"Mul", "RealDiv", "DivNoNan", "Maximum", "Minimum", "ClipByValue"}
)


class NotAdditiveError(RefusalError):
    """A step sets a variable to which workers can only add."""


def increment(
    value: tf.Tensor, view: tf.Tensor, trainable: bool, num_workers: int
) -> tf.Tensor | None:
    """Returns the increment that replaces the assignment of `value`, or None.

    The `view` is what the step read of the variable.
    """
    is_number = value.dtype.is_floating or value.dtype.is_integer
    # In a loop or a branch, the view is captured as a placeholder of another graph,
    # from which its use cannot be traced.
    if not is_number or value.graph is not view.graph:
        return None
    op = _source(value)
    if op.type in _SUMS:
        left, right = op.inputs
        if _is(left, view):
            return _shaped_as(view, -right if op.type == "Sub" else right)
        # `d - view` is no increment: it negates what other workers have added.
        if _is(right, view) and op.type != "Sub":
            return _shaped_as(view, left)
        kept = _share_kept(left, view) or (
            _share_kept(right, view) if op.type != "Sub" else None
        )
        if kept is not None and num_workers * (1 - kept) < 0.5:
            return value - view
    return value - view if trainable and _is_projection(op, view) else None


def _is_projection(op: tf.Operation, view: tf.Tensor) -> bool:
    """Returns True if projections of the view computed an operation's result."""
    ops = reached(
        [op], lambda op: map(_source, op.inputs) if op.type in _PROJECTIONS else ()
    )
    projections = [each for each in ops if each.type in _PROJECTIONS]
    return any(_is(each, view) for op in projections for each in op.inputs)


def _shaped_as(view: tf.Tensor, term: tf.Tensor) -> tf.Tensor:
    # A scalar, or a shape that is known only when the step runs.
    return term if term.shape == view.shape else tf.broadcast_to(term, tf.shape(view))


def _source(tensor: tf.Tensor) -> tf.Operation:
    """Returns the operation that computed a tensor, behind identities."""
    op = tensor.op
    while op.type == "Identity" or (
        op.type == "Cast" and op.inputs[0].dtype == tensor.dtype
    ):
        op = op.inputs[0].op
    return op


def _is(tensor: tf.Tensor, view: tf.Tensor) -> bool:
    return _source(tensor) is _source(view) or tensor.name == view.name


def _share_kept(term: tf.Tensor, view: tf.Tensor) -> float | None:
    """Returns the constant b, from 0 to 1, if the term is `b * view`."""
    op = _source(term)
    if op.type != "Mul":
        return None
    for factor, other in (op.inputs, reversed(op.inputs)):
        kept = tf.get_static_value(factor)
        if kept is not None and kept.ndim == 0 and _is(other, view) and 0 <= kept <= 1:
            return float(kept)
    return None
