"""Variables of replicas, some with different copies that a read adds up."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.synchronous.replica.current_step import part_to_write
from tfdist.variables.creation import being_created

_handles: list[weakref.ref[tf.Variable]] = []


def created(
    create: Callable[..., Any], next_creator: Callable[..., Any], kwargs: dict[str, Any]
) -> Any:
    """Creates a variable, and notes whether its copies are combined when it is read.

    Keras marks variables such as an optimizer's counters as written by the first replica.
    Every replica writes the same value to them anyway. Having TensorFlow copy the first
    one's would take a merge call per variable.
    """
    is_of_keras = being_created().path is not None
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA
    if is_of_keras and kwargs.get("aggregation") == first:
        kwargs = {**kwargs, "aggregation": tf.VariableAggregation.NONE}
    variable = create(next_creator, **kwargs)
    if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
        copies = tf.distribute.get_strategy().experimental_local_results(variable)
        _handles.extend(weakref.ref(each.handle, _handles.remove) for each in copies)
        # Of Keras's own the hooks of `keras.Variable` see to it.
        if not is_of_keras:
            _count_examples_once(variable)
    return variable


def _count_examples_once(variable: keras.Variable) -> None:
    # Weak: the variable is to hold the functions that hold this.
    reference = weakref.ref(variable)
    for name in ("assign", "assign_add", "assign_sub"):
        write = getattr(type(variable), name)
        setattr(variable, name, functools.partial(_written, reference, write))


def _written(
    reference: weakref.ref[tf.Variable],
    write: Callable[..., Any],
    value: Any,
    **kwargs: Any,
) -> Any:
    variable = reference()
    is_increment = write.__name__ != "assign"
    return write(variable, part_to_write(variable, value, is_increment), **kwargs)


def is_on_read(handle: Any) -> bool:
    """Returns True if a handle is that of a copy of such a variable."""
    return any(each() is handle for each in _handles)
