"""The devices of stages, and the operations that belong there."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.research.model_parallel.pipeline.errors import PipelineError


def here() -> str:
    """Returns the full name of this process's CPU, which has what no stage has."""
    with tf.device("/device:CPU:0"):
        return str(tf.identity(0).device)


def full_name(device: str) -> str:
    """Returns a device's name with its job and task, by default those of this process."""
    own = tf.DeviceSpec.from_string(here())
    own = own.replace(device_type=None, device_index=None)
    return str(own.make_merged_spec(tf.DeviceSpec.from_string(device)).to_string())


def devices_here(given: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the devices given, or this process's GPUs, or without any its CPUs."""
    existing = [full_name(each.name) for each in tf.config.list_logical_devices()]
    if given is None:
        gpus = [name for name in existing if "GPU" in name]
        return tuple(gpus or (name for name in existing if "CPU" in name))
    if isinstance(given, str):
        raise PipelineError(f"devices must be a list of names; received {given!r}")
    names = tuple(full_name(each) for each in given)
    for name, each in zip(names, given, strict=True):
        if name not in existing:
            raise PipelineError(
                f"devices must be of this process, which has {', '.join(existing)}; "
                f"received {each!r}. A process has several logical CPUs after "
                "tf.config.set_logical_device_configuration"
            )
    if not names:
        raise PipelineError("devices must have at least one device; received none")
    return names


def devices_of_workers(workers: Sequence[str]) -> tuple[str, ...]:
    """Returns all GPUs of each worker, or its CPU if it has none, in their order."""
    names = [each.name for each in tf.config.list_logical_devices("GPU")]
    found: list[str] = []
    for worker in workers:
        gpus = [name for name in names if name.startswith(f"{worker}/")]
        found += gpus or [f"{worker}/device:CPU:0"]
    return tuple(full_name(each) for each in found)


def cpu_beside(device: str) -> str:
    """Returns the first CPU of the task of a device."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == "CPU":
        return device
    return str(spec.replace(device_type="CPU", device_index=0).to_string())


def on(device: str) -> contextlib.AbstractContextManager[Any]:
    """Places operations on a device, except for those that use a variable.

    These are where the variable is: TensorFlow would refuse to have a step that is counted
    on the chief read on a worker.
    """
    if tf.executing_eagerly():
        return tf.device(device)
    return tf.compat.v1.device(_placing(lambda op: device))


def beside_inputs() -> contextlib.AbstractContextManager[Any]:
    """Places operations where their first input is, in a graph."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.compat.v1.device(
        _placing(lambda op: next((i.device for i in op.inputs if i.device), ""))
    )


def _placing(device_of: Callable[[tf.Operation], str]) -> Callable[[Any], str]:
    def place(op: tf.Operation) -> str:
        if any(each.dtype == tf.resource for each in (*op.inputs, *op.outputs)):
            return str(op.device)
        place = tf.DeviceSpec.from_string(device_of(op))
        # A layer may have asked for the CPU, or another device of the task.
        asked = tf.DeviceSpec.from_string(op.device)
        return str(place.make_merged_spec(asked).to_string())

    return place
