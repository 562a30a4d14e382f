"""The error for a loss that cannot be computed from parts of the batch."""

import re

import tensorflow as tf

from tfdist._authors import Author, made_in
from tfdist._refusal import RefusalError
from tfdist.synchronous.fit import fixed_rows
from tfdist.synchronous.fit.kind import Kind

FUNCTIONS = re.compile("PartitionedCall|^(Stateless)?(If|While|Case)$|PyFunc")

_WHOLE_BATCH = (
    "tfdist.whole_batch(tensor), which has the rows of all replicas. Or let each replica "
    "compute from its own part by whole_batch=False of the strategy"
)
_TAKEN = (
    "It depends on the positions of examples in the batch, or on their number, and each "
    "replica has only a part of the batch. Divide a sum over all examples instead of each, "
    f"or compute from {_WHOLE_BATCH}, and nothing of the replica's own, not even tf.range of "
    "its number of examples. Pass examples that belong together, such as pairs, as several "
    "inputs: (anchors, positives), not one array of both"
)
_PADDED = (
    "It pads to the longest row of a replica's part of the batch, where one process pads "
    "to the longest of all. Give a length that is always the same: output_sequence_length "
    "of TextVectorization, or shape=[None, length] of RaggedTensor.to_tensor"
)
_ADVICE = {
    Kind.TAKEN: _TAKEN,
    Kind.POSITIONS: _TAKEN,
    Kind.MIXED: (
        "It computes an example's value from other examples, or that it does not cannot be "
        "read from this operation, and each replica has only a part of the batch. Compute "
        f"it from {_WHOLE_BATCH}"
    ),
    Kind.UNKNOWN: (
        "Each replica has a part of the batch, and only sums and means over examples can "
        "be combined from parts. Write the loss with those (tf.reduce_mean, "
        f"tf.reduce_sum, Keras's losses), or compute it from {_WHOLE_BATCH}"
    ),
}


class IndivisibleLossError(RefusalError):
    """A loss cannot be computed by replicas that each have a part of the batch."""


def indivisible(op: tf.Operation, kind: Kind = Kind.UNKNOWN) -> IndivisibleLossError:
    """Returns the error for a loss that depends on the examples through `op`.

    Args:
        op: The operation.
        kind: The kind of its result.
    """
    if kind is Kind.UNKNOWN and (of_fixed_rows := fixed_rows.advice(op)):
        advice = of_fixed_rows
    elif FUNCTIONS.search(op.type) or op.type == "Placeholder":
        advice = (
            "The result of a condition, a loop or a Python function cannot be taken "
            "apart: use tf.where, and compute the loss in train_step itself, or from "
            f"{_WHOLE_BATCH}"
        )
    elif op.type == "RaggedTensorToTensor":
        advice = _PADDED
    else:
        advice = _ADVICE.get(kind, _ADVICE[Kind.UNKNOWN])
    return IndivisibleLossError(
        f"the loss or a metric depends on the examples through {op.type} ({op.name})"
        f"{made_in(op, Author.PROGRAM, Author.PACKAGE)}. {advice}"
    )
