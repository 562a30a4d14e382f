"""A sum of means, sums and constants of the examples, computed again from parts of each."""

from collections.abc import Callable, Hashable, Sequence

import tensorflow as tf

from tfdist.keras.graph import inputs_of
from tfdist.synchronous.reader.indivisible import FUNCTIONS
from tfdist.synchronous.reader.reduction import CONSTANTS, Reduction, summands
from tfdist.synchronous.reader.reduction_reader import ReductionReader


def computed_from_parts(
    reader: ReductionReader,
    value: tf.Tensor,
    part_of: Callable[[tf.Tensor, Reduction], tf.Tensor],
    whole_of: Callable[[tf.Tensor], tf.Tensor],
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
    parts: dict[Hashable, tf.Tensor] = {}
    leaves: dict[Hashable, tf.Tensor] = {}
    pending = [value]
    while pending:
        each = pending.pop()
        kind, inputs = reader.kind_of(each), inputs_of(each)
        if kind is not Reduction.LINEAR:
            parts[each.ref()] = part_of(each, kind)
            continue
        if FUNCTIONS.search(each.op.type):
            raise reader.error_of(each)
        kinds = [reader.kind_of(one) for one in inputs]
        # What is neither a constant nor a count is a term of a product, too.
        added = summands(each.op.type, len(inputs)) or [
            i for i, of in enumerate(kinds) if of not in CONSTANTS | {Reduction.COUNT}
        ]
        if missing := [inputs[i] for i in added if inputs[i].ref() not in parts]:
            pending += [each, *missing]
            continue
        given = []
        for i, (one, of) in enumerate(zip(inputs, kinds, strict=True)):
            # A constant may be a term in one place and a factor in another.
            factor = whole_of(one) if of is Reduction.COUNT and i not in added else one
            given.append(parts[one.ref()] if i in added else factor)
            leaves[one.ref()] = one
        parts[each.ref()] = _again(each, given)
    terms = [
        one for one in leaves.values() if reader.kind_of(one) is not Reduction.LINEAR
    ]
    return parts[value.ref()], terms


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
