"""Inputs of operations, without the handles that an operation passes on to nothing.

TensorFlow's `custom_gradient` passes all that a function takes through an `IdentityN`, the
handle of a variable included. It would run where the variable is, and the value that passes
along with the handle would go to that ps and back.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.walks import reached


def used_inputs(op: tf.Operation) -> list[tf.Tensor]:
    """Returns the inputs of an operation without the handles that it passes to nothing."""
    if op.type != "IdentityN":
        return list(op.inputs)
    both = zip(op.inputs, op.outputs, strict=True)
    return [given for given, output in both if not _is_unused(given, output)]


def sources_of(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns operations and all that they depend on."""
    return reached(ops, lambda op: [*(i.op for i in op.inputs), *op.control_inputs])


def dependents_of(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns operations and all that depend on them."""
    return reached(ops, _tf.waiting_for)


def without_unused_handles(definition: Any, graph: Any) -> None:
    """Replaces what an `IdentityN` passes on of handles that nothing uses."""
    for node in definition.node:
        if node.op == "IdentityN":
            op = graph.get_operation_by_name(node.name)
            used = [
                i
                for i, both in enumerate(zip(op.inputs, op.outputs, strict=True))
                if not _is_unused(*both)
            ]
            types = node.attr["T"].list.type
            for i in range(len(types)):
                if used and i not in used:
                    # Not removed, because outputs are found by their numbers.
                    node.input[i], types[i] = node.input[used[0]], types[used[0]]


def _is_unused(given: tf.Tensor, output: tf.Tensor) -> bool:
    return given.dtype == tf.resource and not output.consumers()
