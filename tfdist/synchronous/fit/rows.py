"""Operations of a traced step that depend on how a batch is divided into rows.

A row is one example. Each replica has some of the rows, so an operation that selects rows
by position, or computes one row from others, has a different result on each part.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._authors import is_of_keras
from tfdist.synchronous.fit.kind import CONSTANTS, Kind

_SCALED = frozenset(["Mul", "RealDiv", "Div", "DivNoNan"])
_TAKING = frozenset(["StridedSlice", "Unpack", "GatherV2", "Split", "SplitV", *_SCALED])

_STATISTICS = frozenset([Kind.MEAN, Kind.SUM, Kind.SELECTED, Kind.OTHER, Kind.UNKNOWN])
# The index of the input that is the axis.
_ALONG_AN_AXIS = {"ReverseV2": 1, "Roll": 2, "Cumsum": 1, "Cumprod": 1}
_REDUCTIONS = frozenset(["Sum", "Mean", "Max", "Min", "Prod"])
_NORMALIZATIONS = frozenset(["Softmax", "LogSoftmax"])
_BROADCASTING = frozenset(
    [
        "Add",
        "AddV2",
        "Sub",
        "SquaredDifference",
        "Maximum",
        "Minimum",
        "Pow",
        "SelectV2",
    ]
    + ["FloorDiv", "Xdivy", "Xlogy", *_SCALED]
)
# TensorFlow orders row partitions itself when it computes with ragged values.
_COMPARISONS = frozenset(["Equal", "NotEqual"])


def takes_rows(op: tf.Operation, kinds: Sequence[Kind], of_batch: bool = False) -> bool:
    """Returns whether a program selects rows by position, or scales them by their number.

    Integers are ignored unless they come from the batch: TensorFlow itself slices row
    partitions when it computes with ragged values.

    Args:
        op: The operation.
        kinds: The kinds of its inputs.
        of_batch: Whether an input is a dense component of the batch.
    """
    is_looked_at = op.type in _TAKING and Kind.ROWS in kinds
    if not is_looked_at or not (op.outputs[0].dtype.is_floating or of_batch):
        return False
    if op.type in _SCALED:
        # Rows divided by their number add up to a mean in one process. On replicas, each
        # divides by its own number, and the sum is as many means as there are replicas.
        is_taken = Kind.COUNT in kinds
    else:
        rows = op.inputs[1 if op.type == "Split" else 0]
        leads = rows.shape.rank and rows.shape[0] is None
        is_taken = bool(leads) and _takes_along_first_axis(op, kinds)
    return is_taken and not is_of_keras(op)


def _takes_along_first_axis(op: tf.Operation, kinds: Sequence[Kind]) -> bool:
    if op.type == "StridedSlice":
        whole = op.get_attr("begin_mask") & op.get_attr("end_mask")
        other = op.get_attr("ellipsis_mask") | op.get_attr("new_axis_mask")
        return not (whole | other) & 1
    if op.type == "Unpack":
        return bool(op.get_attr("axis") == 0)
    if op.type in ("Split", "SplitV"):
        axis = op.inputs[0 if op.type == "Split" else 2]
        return bool(tf.get_static_value(axis) == 0)
    return _gathers_rows(op) and kinds[1] in CONSTANTS


def mixes_rows(tensor: Any, inputs: Sequence[Any], kinds: Sequence[Kind]) -> bool:
    """Returns whether a program computes rows from other rows of the batch.

    Args:
        tensor: A result of the operation.
        inputs: The inputs of the operation.
        kinds: The kinds of the inputs.
    """
    op = tensor.op
    if Kind.ROWS not in kinds or not has_rows(tensor):
        return False
    if op.type in _COMPARISONS:
        return _is_of_pairs(tensor, inputs, kinds) and not is_of_keras(op)
    if not tensor.dtype.is_floating:
        return False
    if op.type in _REDUCTIONS or op.type in _NORMALIZATIONS:
        mixes = _reduces_rows(op)
    elif op.type == "RandomShuffle":
        mixes = True
    elif op.type in _ALONG_AN_AXIS:
        axis = tf.get_static_value(op.inputs[_ALONG_AN_AXIS[op.type]])
        mixes = axis is not None and 0 in axis.ravel().tolist()
    elif op.type == "GatherV2":
        mixes = _gathers_rows(op) and kinds[0] is Kind.ROWS and not _selects(inputs[1])
    else:
        mixes = _has_statistic(inputs, kinds) or _is_of_pairs(tensor, inputs, kinds)
    return mixes and not is_of_keras(op)


def _has_statistic(inputs: Sequence[Any], kinds: Sequence[Kind]) -> bool:
    return any(
        kind in _STATISTICS and each.dtype.is_floating
        for each, kind in zip(inputs, kinds, strict=True)
    )


def _is_of_pairs(tensor: Any, inputs: Sequence[Any], kinds: Sequence[Kind]) -> bool:
    """Returns whether all pairs of rows meet: [n, 1, d] and [1, n, d], or [n, n]."""
    shapes = [
        each.shape.as_list()
        for each, kind in zip(inputs, kinds, strict=True)
        if kind is Kind.ROWS and each.shape.rank
    ]
    if tensor.op.type in ("MatMul", "BatchMatMulV2", "Einsum"):
        return len(shapes) > 1 and bool(tensor.shape.as_list() == [None, None])
    rank = tensor.shape.rank
    if rank is None or tensor.op.type not in _BROADCASTING | _COMPARISONS:
        return False
    # Shapes meet at their last axes: [n] and [n, 1] make [n, n].
    leading = {shape[0] if len(shape) == rank else 1 for shape in shapes}
    return len(shapes) > 1 and leading >= {None, 1}


def _reduces_rows(op: tf.Operation) -> bool:
    """Returns whether an operation combines along the first axis, and others are left."""
    shape = op.inputs[0].shape
    if not shape.rank:
        return False
    if op.type in _NORMALIZATIONS:
        # TensorFlow moves the axis to the end.
        is_alone = shape.rank == 1 or shape[0] is not None
        return is_alone and shape[-1] is None
    axes = tf.get_static_value(op.inputs[1])
    return shape[0] is None and axes is not None and 0 in (axes.ravel() % shape.rank)


def _gathers_rows(op: tf.Operation) -> bool:
    axis = tf.get_static_value(op.inputs[2])
    return axis is not None and int(axis) == 0 and not op.get_attr("batch_dims")


def _selects(indices: Any) -> bool:
    """Returns whether indices are those of a mask, as in `tf.boolean_mask`.

    A mask keeps or drops each example by itself, wherever it is in the batch.
    """
    while indices.op.type in ("Squeeze", "Reshape", "Cast", "Identity"):
        indices = indices.op.inputs[0]
    return bool(indices.op.type == "Where")


def has_rows(tensor: Any) -> bool:
    """Returns whether a tensor has an unknown dimension: that of the examples."""
    rank = tensor.shape.rank
    return rank is None or None in tensor.shape.as_list()
