"""Finds which task computes each node of a step: the worker, or one of the ps."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.graph.functions import function_attrs
from tfdist.graph.used_inputs import sources_of

WORKER = "worker"

# They only pass their input on, so they cost nothing where their input is.
_FORWARDING = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot"})


def tasks_of(graph: Any, homes: Mapping[str, str]) -> dict[str, str]:
    """Returns the task that computes each operation.

    TensorFlow runs an operation on a variable where the variable is, even if another
    device was asked for. Others run as asked for, and by default on the worker.

    Args:
        graph: The `FuncGraph` of the step.
        homes: The device of each captured resource, by the name of its placeholder.
    """
    tasks: dict[str, str] = {}
    for op in graph.get_operations():
        tasks[op.name] = _task_of(op, homes, tasks)
    return tasks


def waits_of(
    graph: Any, homes: Mapping[str, str], entered: Mapping[str, str]
) -> dict[str, list[str]]:
    """Returns the operations that each one waits for besides its inputs."""
    operations = {op.name: op for op in graph.get_operations()}
    roots = [operations[name] for name in entered.values()]
    before = {op.name for op in sources_of(roots)}
    waits = {}
    for name, op in operations.items():
        # The inputs of the entered operations cannot wait for them.
        if name not in before:
            tasks = {task_at(homes[i.op.name]) for i in op.inputs if i.op.name in homes}
            waits[name] = [entered[task] for task in sorted(tasks) if task in entered]
    return waits


def device_of(task: str) -> str:
    """Returns the device of a task; the worker's is the default, and empty."""
    if task == WORKER:
        return ""
    job, _, index = task.partition(":")
    return f"/job:{job}/replica:0/task:{index}/device:CPU:0"


def device_for(task: str, device: str) -> str:
    """Returns the device of an operation of this task that asked for `device`."""
    return device if task_at(device) == task else device_of(task)


def task_at(device: str) -> str:
    """Returns the task that a device belongs to."""
    spec = tf.DeviceSpec.from_string(device)
    return f"ps:{spec.task or 0}" if spec.job == "ps" else WORKER


def calls_functions(op: tf.Operation) -> bool:
    """Returns True if an operation calls functions: a branch, loop or `tf.function`."""
    return any(True for _ in function_attrs(op.node_def))


def _task_of(
    op: tf.Operation, homes: Mapping[str, str], tasks: Mapping[str, str]
) -> str:
    if op.name in homes:
        return task_at(homes[op.name])
    if op.type in _FORWARDING:
        return tasks[op.inputs[0].op.name]
    # A function may use variables of several ps, so it runs where it was asked for.
    if not calls_functions(op):
        for each in op.inputs:
            if each.dtype == tf.resource and tasks[each.op.name] != WORKER:
                return tasks[each.op.name]
    return task_at(op.device)
