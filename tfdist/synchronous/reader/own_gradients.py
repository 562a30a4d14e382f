"""Checks of gradient functions that a program wrote itself, by `tf.custom_gradient`.

TensorFlow's gradients keep examples apart if the operations they belong to do, and they are
linear: those of all replicas add up to the whole batch's. Of others, the ones around rows do
where they keep rows apart. Around a weight, they see a replica's part of its gradient.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._authors import Author, is_apart, is_of_tfdist, made_in
from tfdist.synchronous.reader.indivisible import IndivisibleLossError, remedies
from tfdist.synchronous.reader.reduction import Reduction
from tfdist.synchronous.reader.reduction_reader import ReductionReader


def check_own_gradients(
    reader: ReductionReader, graph: tf.Graph, gradients: Any
) -> None:
    """Checks that gradient functions of the program keep examples apart.

    Raises:
        IndivisibleLossError: If one does not, or is around a weight or a number.
    """
    own = list(_own_gradients(graph))
    for op in own:
        inputs = [each for each in op.inputs if each.op.type != "Const"]
        if op.graph is not graph or {*map(reader.kind_of, inputs)} != {Reduction.ROWS}:
            raise IndivisibleLossError(
                f"a tf.custom_gradient{made_in(op, Author.PROGRAM, Author.PACKAGE)} is "
                "around a weight or a number, or in a tf.function of the step, and each "
                "replica has the gradient of its own part of the batch. Let tape."
                "gradient(...) return the gradient of the whole batch, and clip or change "
                f"that before optimizer.apply(...). {remedies()}"
            )
    for each in tf.nest.flatten(gradients, expand_composites=True) if own else []:
        refused = (Reduction.MIXED, Reduction.TAKEN, Reduction.OTHER)
        if each is not None and reader.kind_of(each) in refused:
            raise reader.error_of(each)


def _own_gradients(graph: Any) -> Iterator[tf.Operation]:
    """Returns the operations whose gradient a program wrote, in a graph and its calls."""
    for op in graph.get_operations():
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            called = _tf.function_graph(op)
            yield from _own_gradients(called) if called is not None else ()
        elif _tf.has_custom_gradient(op) and not (is_apart(op) or is_of_tfdist(op)):
            yield op
