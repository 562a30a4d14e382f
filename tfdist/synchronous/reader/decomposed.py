"""A sum of means, sums and constants of the examples, computed again from parts of each."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras.graph import inputs_of
from tfdist.synchronous.reader.indivisible import FUNCTIONS
from tfdist.synchronous.reader.reduction import ADDITIVE, CHOICES, CONSTANTS, Reduction
from tfdist.synchronous.reader.reduction_reader import ReductionReader


def computed_from_parts(
    reader: ReductionReader,
    value: tf.Tensor,
    part_of: Callable[[tf.Tensor, Reduction], Any],
    whole_of: Callable[[tf.Tensor], Any],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns a number of kind LINEAR, computed from a replica's part of each term.

    Args:
        reader: Reads the graph.
        value: The number.
        part_of: Returns the part of a term, given its kind.
        whole_of: Returns the whole batch's number, given a replica's COUNT.

    Returns:
        The result, and the number's terms with the factors that they are multiplied with.

    Raises:
        IndivisibleLossError: If a function of the step adds the terms up.
    """
    parts: dict[Any, tf.Tensor] = {}
    leaves: dict[Any, tf.Tensor] = {}
    pending = [value]
    while pending:
        each = pending[-1]
        kind, inputs = reader.kind_of(each), inputs_of(each)
        added = _added(each.op, [reader.kind_of(one) for one in inputs])
        missing = [one for i, one in enumerate(inputs) if added[i]]
        missing = [one for one in missing if one.ref() not in parts]
        if kind is not Reduction.LINEAR:
            parts[each.ref()] = part_of(each, kind)
        elif FUNCTIONS.search(each.op.type):
            raise reader.error_of(each)
        elif missing:
            pending += missing
            continue
        else:
            given = []
            for one, is_added in zip(inputs, added, strict=True):
                # A constant may be a term in one place and a factor in another.
                is_count = not is_added and reader.kind_of(one) is Reduction.COUNT
                factor = whole_of(one) if is_count else one
                given.append(parts[one.ref()] if is_added else factor)
                leaves[one.ref()] = one
            parts[each.ref()] = _again(each, given)
        pending.pop()
    terms = [
        one for one in leaves.values() if reader.kind_of(one) is not Reduction.LINEAR
    ]
    return parts[value.ref()], terms


def _added(op: tf.Operation, kinds: Sequence[Reduction]) -> list[bool]:
    """Returns which inputs an operation adds up. It multiplies with the others."""
    if op.type in ADDITIVE:
        return [op.type != "ConcatV2" or i + 1 < len(kinds) for i in range(len(kinds))]
    if op.type in CHOICES:
        return [i > 0 for i in range(len(kinds))]
    return [kind not in CONSTANTS | {Reduction.COUNT} for kind in kinds]


def _again(tensor: tf.Tensor, given: Sequence[tf.Tensor]) -> tf.Tensor:
    """Applies the operation of a tensor to other inputs."""
    if tensor.op.type == "Placeholder":
        return given[0]
    definition = tf.compat.v1.GraphDef()
    definition.versions.CopyFrom(tensor.graph.graph_def_versions)
    node = definition.node.add()
    node.CopyFrom(tensor.op.node_def)
    node.ClearField("input")
    node.input.extend(f"given_{i}" for i in range(len(given)))
    # It names operations of the original graph.
    node.attr.pop("_class", None)
    (again,) = tf.graph_util.import_graph_def(
        definition,
        input_map={f"given_{i}:0": each for i, each in enumerate(given)},
        return_elements=[f"{node.name}:{tensor.value_index}"],
        name="part",
    )
    again.set_shape(tensor.shape)
    return again
