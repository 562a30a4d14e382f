"""The error for a loss that cannot be computed from parts of the batch."""

import re

import tensorflow as tf

from tfdist import _tf
from tfdist._support.authors import Author, made_in
from tfdist._support.errors import RefusalError
from tfdist.keras.graph import inputs_of
from tfdist.synchronous.reader.reduction import Reduction

FUNCTIONS = re.compile("PartitionedCall|^(Stateless)?(If|While|Case)$|PyFunc")

OF_THE_WHOLE = (
    "is that of the whole batch, each replica has only a part of its rows: take the number "
    "from the examples, as in tf.random.normal([tf.shape(x)[0], ...])"
)
"""The cause and the remedy of a fixed number of rows, for errors."""

_FUNCTION = (
    "The result of a condition, a loop or a Python function cannot be divided into parts: "
    "use tf.where, and compute the loss in train_step itself"
)
_PADDED = (
    "It pads to the longest row of a replica's part, where one process pads to the longest "
    "of all. Give a length that is always the same: output_sequence_length of "
    "TextVectorization, or shape=[None, length] of RaggedTensor.to_tensor"
)
_SEEDED = (
    "Its seed is the same on every replica, so all replicas draw the same numbers for their "
    "rows. Draw with keras.random and a keras.random.SeedGenerator, or with tf.random"
)
_UNKNOWN = (
    "Write it with sums and means over examples: tf.reduce_mean, tf.reduce_sum, or Keras's "
    "losses"
)
_ADVICE = {
    Reduction.TAKEN: (
        "It depends on positions or on the number of examples, which differ between replicas. "
        "Divide a sum over all examples instead of each example, and do not index examples "
        "by position, as by tf.range of their number. Pass examples that belong together, "
        "such as pairs, as several inputs: (anchors, positives), not one array of both"
    ),
    Reduction.MIXED: (
        "It may mix examples: tfdist cannot prove that each result depends on one example"
    ),
    Reduction.OTHER: (
        "It is a function of sums and means that does not add up over parts of the batch, "
        "such as a root or a ratio of them"
    ),
}


class IndivisibleLossError(RefusalError):
    """A loss cannot be computed by replicas that each have a part of the batch."""


def indivisible(
    op: tf.Operation, kind: Reduction = Reduction.UNKNOWN
) -> IndivisibleLossError:
    """Returns the error for a loss that depends on the examples through `op`."""
    if kind is Reduction.UNKNOWN and (of_fixed_rows := _advice_on_fixed_rows(op)):
        advice = of_fixed_rows
    elif FUNCTIONS.search(op.type) or op.type == "Placeholder":
        advice = _FUNCTION
    elif kind is Reduction.TAKEN and op.type.startswith("Stateless"):
        advice = _SEEDED
    elif op.type == "RaggedTensorToTensor":
        advice = _PADDED
    else:
        advice = _ADVICE.get(kind, _UNKNOWN)
    return IndivisibleLossError(
        "a loss or a metric must be a sum or a mean over examples, because each replica has "
        f"only a part of the batch; got one computed from them through {op.type} ({op.name})"
        f"{made_in(op, Author.PROGRAM, Author.PACKAGE)}. {advice}. {remedies()}"
    )


def remedies() -> str:
    """Returns the remedies for a custom step that is refused, the exact ones first."""
    is_ring = type(tf.distribute.get_strategy()).__name__ == "RingStrategy"
    name = "RingStrategy" if is_ring else "MultiWorkerMirroredStrategy"
    return (
        "Compute it from the rows of all replicas: x = tfdist.whole_batch(x). Or, if what "
        "the step computes from its rows is a mean over them, say so: "
        f'tfdist.{name}(replica_loss="mean")'
    )


def _advice_on_fixed_rows(op: tf.Operation) -> str:
    """Returns the remedy where an operation, or a function, fixes the rows; else ""."""
    graph = _tf.function_graph(op) if "PartitionedCall" in op.type else None
    for each in graph.get_operations() if graph else [op]:
        if size := _fixed_by(each):
            return (
                f"The number of rows must not be fixed, and {each.type} makes {size} rows "
                f"of the examples. If {size} {OF_THE_WHOLE}"
            )
    return ""


def _fixed_by(op: tf.Operation) -> int | None:
    """Returns the fixed number of rows that examples get from a second input, or None."""
    if not op.outputs or not op.outputs[0].shape.rank or op.type == "GatherV2":
        return None
    size = op.outputs[0].shape[0]
    sizes = [each.shape[0] for each in inputs_of(op.outputs[0]) if each.shape.rank]
    is_given = op.type == "Reshape" or size in sizes
    return size if size and size > 1 and None in sizes and is_given else None
