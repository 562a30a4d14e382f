"""The error for a loss that cannot be computed from parts of the batch."""

import re

import tensorflow as tf

from tfdist.liveness.step_error import user_line
from tfdist.synchronous.fit.rows import TAKING

FUNCTIONS = re.compile("PartitionedCall|^(Stateless)?(If|While|Case)$|PyFunc")


class IndivisibleLossError(ValueError):
    """A loss cannot be computed by replicas that each have a part of the batch."""


def indivisible(op: tf.Operation) -> IndivisibleLossError:
    """Returns the error for a loss that depends on the examples through `op`."""
    if FUNCTIONS.search(op.type) or op.type == "Placeholder":
        advice = (
            "The result of a condition, a loop or a Python function cannot be taken "
            "apart: use tf.where, and compute the loss in train_step itself"
        )
    elif op.type in TAKING:
        advice = (
            "It selects examples by their position in the batch, or divides each by "
            "their number, and each replica has only a part of the batch. Divide a "
            "sum over all examples instead. Pass examples that belong together, such "
            "as pairs, as several inputs: (anchors, positives), not one array of both"
        )
    else:
        advice = (
            "Each replica has a part of the batch, and only sums and means over "
            "examples can be combined from parts. Write the loss with those "
            "(tf.reduce_mean, tf.reduce_sum, Keras's losses), or train it under "
            "tfdist.ParameterServerStrategy, where each step has the whole batch"
        )
    return IndivisibleLossError(
        f"the loss or a metric depends on the examples through {op.type} ({op.name})"
        f"{user_line(op)}. {advice}"
    )
