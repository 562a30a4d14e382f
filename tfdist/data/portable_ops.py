"""Operations of a pipeline that compute on a worker what they compute on the chief."""

import functools
from typing import Any

import tensorflow as tf

from tfdist.data import chief_only_reasons
from tfdist.graph.draws import RANDOM, is_seeded
from tfdist.graph.functions import PYTHON_OPS

# Stateful to TensorFlow, and without an effect that a user could see.
_HARMLESS = frozenset({"Assert", "TensorArrayV3"})
# They are what the functions that they call are, and those are looked at, too.
_CALLS = frozenset({"Case", "If", "StatefulPartitionedCall", "While"})
# Without a state to TensorFlow, though what they return is in a file, in the process, or
# with other calls that come at the same time.
_OF_A_PLACE = frozenset(
    {
        "Batch",
        "BatchFunction",
        "DecodeProtoV2",
        "DeviceIndex",
        "EncodeProto",
        "GenerateVocabRemapping",
        "ImmutableConst",
        "MatchingFiles",
        "ReadFile",
        "Unbatch",
    }
)
_PARTS_OF_NAMES = ("Dataset", "Iterator", "Reader", "Xla", "TPU", "Debug")


def check_operation(node: Any) -> None:
    """Checks that any process of the cluster computes the same with an operation.

    One that draws at random without a seed is different each time, wherever it runs.

    Raises:
        OnlyTheChiefReads: If that is not known of it.
    """
    if node.op in PYTHON_OPS:
        raise chief_only_reasons.calls_python()
    if node.device not in ("", "/device:CPU:0"):
        raise chief_only_reasons.of_a_place(f"{node.op} on {node.device}")
    if is_seeded(node):
        raise chief_only_reasons.drawn_with_seed(node.op)
    if node.op in RANDOM | _HARMLESS | _CALLS:
        return
    # Workers have no operations but TensorFlow's own: they load no libraries of yours.
    if not hasattr(tf.raw_ops, node.op):
        raise chief_only_reasons.unknown(node.op)
    definition = _registry().op_def_for_type(node.op)
    if definition.is_stateful:
        raise chief_only_reasons.keeps_state(node.op)
    if node.op in _OF_A_PLACE or any(part in node.op for part in _PARTS_OF_NAMES):
        raise chief_only_reasons.of_a_place(node.op)
    # Those that take it as an input are the stateless ones.
    if any(each.name in ("seed", "seed2") for each in definition.attr):
        raise chief_only_reasons.drawn_with_seed(node.op)


@functools.cache
def _registry() -> tf.Graph:
    return tf.Graph()
