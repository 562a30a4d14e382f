"""`model.export` of a model whose variables are in shards.

An exported function reads the variables that it was traced with. So that a SavedModel
has a table, and not its shards, each is in one piece on the chief while it is exported.
"""

import concurrent.futures
import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from tfdist.variables.partitioned import PartitionedVariable


@contextlib.contextmanager
def in_one_piece(model: keras.Model) -> Iterator[bool]:
    """Has the model's variables that are in shards be whole ones of this process.

    Cost: the memory of all of them on the chief.
    """
    split = [
        (variable, variable._value, type(variable))
        for variable in model.variables
        if isinstance(variable._value, PartitionedVariable)
    ]
    # A strategy's scope is that of a thread: from another one, the variables are of
    # this process, wherever the model is exported.
    with concurrent.futures.ThreadPoolExecutor(1) as elsewhere:
        wholes = list(elsewhere.map(_whole, [value for _, value, _ in split]))
    try:
        for (variable, _, _), whole in zip(split, wholes, strict=True):
            variable._value = whole
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
