"""`model.export` of a model whose variables are split into shards.

An exported function reads the variables that it was traced with. A SavedModel should
contain whole tables, not shards, so each split variable is replaced by a whole one on
the chief during the export.
"""

import concurrent.futures
import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from tfdist.variables.partitioned import PartitionedVariable


@contextlib.contextmanager
def with_whole_variables(model: keras.Model) -> Iterator[bool]:
    """Replaces the model's split variables by whole ones in this process meanwhile.

    Cost: the memory of all split variables on the chief.
    """
    split = [
        (variable, variable._value, type(variable))
        for variable in model.variables
        if isinstance(variable._value, PartitionedVariable)
    ]
    # The user may export inside `strategy.scope()`, where a new variable would go to a
    # ps. A scope belongs to a thread, so another thread creates them in this process.
    with concurrent.futures.ThreadPoolExecutor(1) as elsewhere:
        wholes = list(elsewhere.map(_whole, [value for _, value, _ in split]))
    try:
        for (variable, _, _), whole in zip(split, wholes, strict=True):
            variable._value = whole
            # The class of split variables reads and assigns shard by shard.
            variable.__class__ = keras.Variable
        yield True
    finally:
        for variable, value, own_class in split:
            variable._value = value
            variable.__class__ = own_class


def _whole(value: PartitionedVariable) -> tf.Variable:
    return tf.Variable(
        value.numpy(), trainable=value.trainable, dtype=value.dtype, name=value.name
    )
