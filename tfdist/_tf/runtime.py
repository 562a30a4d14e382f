"""The runtime of this process: its devices, threads, peers and collectives."""

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.cross_device_ops import get_devices_from
from tensorflow.python.distribute.values import Mirrored
from tensorflow.python.eager import context
from tensorflow.python.ops.handle_data_util import create_handle_data, set_handle_data

import tf_config


def use_own_peer_watch() -> None:
    """Turns off TensorFlow's coordination service, which ends the process of a peer.

    It has to be called before the strategy starts the server of this process.
    """
    context.context().configure_coordination_service(service_type="")


def disable_thread_spinning() -> None:
    """Has TensorFlow create threads that sleep when they have nothing to do.

    It has to be called before the first computation of this process.
    """
    eager = context.context()
    options = tf.compat.v1.ConfigProto()
    if eager._config is not None:
        options.CopyFrom(eager._config)
    options.experimental.disable_thread_spinning = True
    # What `tf.config` sets is kept apart, and wins.
    eager._config = options


def check_peer(task: tf_config.Task, timeout: float) -> None:
    """Asks another task's server for a sign of life, for at most `timeout` seconds.

    Raises:
        tf.errors.OpError: If it does not answer, or is not the one of before.
    """
    context.context().check_collective_ops_peer_health(
        f"/job:{task.job}/replica:0/task:{task.index}", int(timeout * 1000)
    )


def abort_collectives(message: str) -> None:
    """Makes every collective of this process fail, those to come as well."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


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
