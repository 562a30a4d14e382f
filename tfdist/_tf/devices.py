"""Where values are, and what they are there."""

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.cross_device_ops import get_devices_from
from tensorflow.python.distribute.values import Mirrored
from tensorflow.python.ops.handle_data_util import create_handle_data, set_handle_data


def devices_of(destinations: Any) -> tuple[str, ...]:
    """Returns the full names of the devices of a value, or of its destination."""
    return tuple(get_devices_from(destinations))


def mirrored(values: Sequence[Any]) -> Any:
    """Returns equal values, one on each device, as one distributed value."""
    return Mirrored(tuple(values))


def set_handle_spec(handle: tf.Tensor, spec: tf.TensorSpec) -> None:
    """Says the dtype and the shape of the variable of a handle, in a graph."""
    set_handle_data(handle, create_handle_data(spec.shape, spec.dtype))


def resource_type(handle: tf.Tensor) -> str:
    """Returns the C++ type of an eager resource, "tensorflow::Var" say, or ""."""
    found = re.search(r'type="([^"]*)"', str(handle))
    return found[1] if found else ""
