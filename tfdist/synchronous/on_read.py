"""Variables whose copies differ on purpose, since a read adds them up."""

import weakref
from typing import Any

import tensorflow as tf

_handles: list[weakref.ref[Any]] = []


def note_on_read(variable: Any, synchronization: Any) -> None:
    """Takes note of a new variable if its copies are combined when it is read."""
    if synchronization == tf.VariableSynchronization.ON_READ:
        copies = tf.distribute.get_strategy().experimental_local_results(variable)
        _handles.extend(weakref.ref(each.handle, _handles.remove) for each in copies)


def is_on_read(handle: Any) -> bool:
    """Returns whether a handle is that of a copy of such a variable."""
    return any(each() is handle for each in _handles)
