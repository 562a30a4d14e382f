"""Checks of gradient functions that a program wrote itself, by `tf.custom_gradient`.

TensorFlow's gradients keep examples apart if the operations they belong to do, and they are
linear: those of all replicas add up to the whole batch's. Others need not be.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._authors import is_apart
from tfdist.keras.graph import inputs_of
from tfdist.synchronous.fit.indivisible import IndivisibleLossError, remedies
from tfdist.synchronous.fit.kind import ADDITIVE, CONSTANTS, INDIVISIBLE, Kind
from tfdist.synchronous.fit.loss_kind import KindReader
from tfdist.synchronous.fit.rows import Known

_OF_OTHER_EXAMPLES = INDIVISIBLE - {Kind.UNKNOWN}
_SUMS = ADDITIVE | {"Identity", "Neg"}


def has_own_gradients(graph: tf.Graph) -> bool:
    """Returns whether a program's `tf.custom_gradient` is in a graph.

    Args:
        graph: The graph. Functions that it calls are searched, too.
    """
    for op in graph.get_operations():
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            called = _tf.function_graph(op)
            if called is not None and has_own_gradients(called):
                return True
        elif _tf.has_custom_gradient(op) and not is_apart(op):
            return True
    return False


def check_own_gradients(
    reader: KindReader, sources: Any, gradients: Any, weights: Sequence[Any]
) -> None:
    """Checks that gradients keep examples apart, and those of variables add up.

    Args:
        reader: Reads the replica's graph.
        sources: What was differentiated with respect to.
        gradients: The replica's gradients, of the structure of `sources`.
        weights: The factors of the targets' gradients; None for ones.

    Raises:
        IndivisibleLossError: If one does not.
    """
    by_share = KindReader(reader.is_same)
    for weight in weights:
        if weight is not None:
            by_share.note(weight, Known(Kind.SUM))
    pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True)
    for source, gradient in pairs:
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        value = gradient.values if is_sparse else gradient
        if value is None:
            continue
        if reader.kind_of(value) in _OF_OTHER_EXAMPLES:
            raise reader.error_of(value)
        is_variable = isinstance(source, keras.Variable | tf.Variable)
        if is_variable and not _adds_up(value, reader, by_share):
            raise IndivisibleLossError(
                f"the gradient of {source.name} is computed by a tf.custom_gradient that "
                "is not linear in the gradient it receives, such as a clipped one, and "
                "each replica has the gradient of its own part of the batch. Let tape."
                "gradient(...) return the gradient of the whole batch, and clip or change "
                f"that before optimizer.apply(...). {remedies()}"
            )


def _adds_up(value: Any, reader: KindReader, by_share: KindReader) -> bool:
    """Returns whether the sum of all replicas' values is the whole batch's.

    Args:
        value: A gradient.
        reader: Reads the replica's graph.
        by_share: Reads the part that does not depend on the examples, in which a factor
            of the replica's share counts as a sum.
    """
    kind = reader.kind_of(value)
    if kind in CONSTANTS:
        constant = tf.get_static_value(value)
        is_zero = constant is not None and not constant.any()
        return is_zero or by_share.kind_of(value) is Kind.SUM
    if kind in (Kind.OTHER, Kind.MEAN) and value.op.type in _SUMS:
        terms = inputs_of(value)
        if value.op.type == "ConcatV2":
            terms = terms[:-1]  # The last one is the axis.
        return all(_adds_up(each, reader, by_share) for each in terms)
    return kind is not Kind.OTHER
