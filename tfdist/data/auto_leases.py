"""An ordinary `tf.data` pipeline of TFRecord files, as a dataset with leases."""

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import NodeDef
from tfdist.data import chief_only_reasons
from tfdist.data.chain import RECORDS, DatasetParts, parts_of
from tfdist.data.file_readers import READERS
from tfdist.data.leased import LeasedDataset
from tfdist.data.record_places import of_places, places_graph, read
from tfdist.data.transformations import above_a_source
from tfdist.graph.draws import RANDOM, is_seeded
from tfdist.graph.functions import PYTHON_OPS, all_called, all_nodes, library_of

MAX_CONSTANT_BYTES = 2**20
"""The most bytes of a pipeline's arrays, which worker functions copy per step."""

_MAX_IN_MEMORY_BYTES = 64 * 2**20
_OTHER_READERS = ("FixedLengthRecord", "TextLine", "CSV", "Csv", "Sql")
_SPECS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
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


@dataclass(frozen=True)
class AutoLeased:
    """An ordinary dataset, as one with leases.

    Attributes:
        leased: The dataset with leases.
        paths: All files that it may read, as they are named.
        ordinary: The dataset itself. The leases take their order from its shuffles, which
            are there as long as it is.
    """

    leased: LeasedDataset
    paths: tuple[str, ...]
    ordinary: tf.data.Dataset


def auto_leased(dataset: tf.data.Dataset) -> AutoLeased | None:
    """Returns a dataset with leases that has the elements of an ordinary one.

    In the same order, also where it shuffles with or without a seed: both continue from
    the same state. It is looked for from the end of the dataset to its source. Files
    are looked at when their turn comes, in each iteration, as in the ordinary dataset.
    Returns None if the ordinary one reads no files, or arrays of little size.

    Raises:
        OnlyTheChiefReads: If leases would be something else, or cannot be made.
    """
    whole = list(_below(dataset))
    operations = {name for each in whole for name in _operations_of(each)}
    if operations.isdisjoint(READERS):
        _tell_what_else(whole, operations)
        return None
    # Before its graph is made, which may have a copy of large arrays.
    names = [type(each).__name__ for each in whole]
    for i, each in enumerate(whole):
        if len(_tf.inputs_of(each)) > 1:
            raise chief_only_reasons.transformed(above_a_source(names[: i + 1]))
    if not all(isinstance(s, _SPECS) for s in tf.nest.flatten(dataset.element_spec)):
        is_window = "_WindowDataset" in names
        raise chief_only_reasons.transformed(
            "window" if is_window else "what makes elements that are no tensors"
        )
    try:
        graph = _tf.dataset_graph(dataset).numpy()
    except tf.errors.OpError as error:
        raise chief_only_reasons.transformed(
            f"what has no graph ({error.message})"
        ) from None
    definition = tf.compat.v1.GraphDef.FromString(graph)
    parts = parts_of(definition, places_graph())
    _check(parts.reads)
    return AutoLeased(_leased(parts, dataset.element_spec), _paths(parts), dataset)


def _operations_of(dataset: tf.data.Dataset) -> set[str]:
    """Returns the types of a dataset's operations, its readers of TFRecord files too."""
    found = {n.op for each in _tf.definitions_of(dataset) for n in all_nodes(each)}
    is_reader = isinstance(dataset, tf.data.TFRecordDataset)
    return found | ({"TFRecordDataset"} if is_reader else set())


def _below(dataset: Any) -> Iterator[Any]:
    yield dataset
    for each in _tf.inputs_of(dataset):
        yield from _below(each)


def _tell_what_else(whole: list[Any], operations: set[str]) -> None:
    """Raises what is said of a dataset without records, unless it is small."""
    if operations & PYTHON_OPS:
        raise chief_only_reasons.generated()
    names = [type(each).__name__.strip("_") for each in whole]
    for name in [*operations, *names]:
        if name.startswith(_OTHER_READERS) and "Dataset" in name:
            raise chief_only_reasons.other_files(re.sub(r"V\d+$", "", name))
    size = sum(map(_tf.bytes_of_arrays, whole))
    if size > _MAX_IN_MEMORY_BYTES:
        raise chief_only_reasons.large_in_memory(size)


def _paths(parts: DatasetParts) -> tuple[str, ...]:
    names = tf.io.parse_tensor(parts.files.SerializeToString(), tf.string).numpy()
    if any(b"://" in each for each in names):
        raise chief_only_reasons.remote()
    return tuple(dict.fromkeys(os.fsdecode(each) for each in names))


def _check(reads: Any) -> None:
    """Checks that a worker computes the same as the chief would."""
    constants = [node for node in reads.node if node.op == "Const"]
    size = sum(node.attr["value"].tensor.ByteSize() for node in constants)
    if size > MAX_CONSTANT_BYTES:
        raise chief_only_reasons.large(size, MAX_CONSTANT_BYTES)
    library = library_of(reads)
    # Not the transformations that call them, which were taken apart one by one.
    for name in all_called(reads.node, library):
        for node in library[name].node_def:
            check_operation(node)


def _leased(parts: DatasetParts, element_spec: Any) -> LeasedDataset:
    spec = (tf.TensorSpec([None] if parts.has_batches else [], tf.string),)
    graph = tf.constant(parts.leases.SerializeToString())

    def records_at(places: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(places).map(read)

    def open_lease(places: tf.Tensor) -> tf.data.Dataset:
        variant = tf.data.experimental.to_variant(records_at(places))
        if parts.end != RECORDS:
            (variant,) = tf.graph_util.import_graph_def(
                parts.reads, {f"{RECORDS}:0": variant}, [f"{parts.end}:0"], name="lease"
            )
        return tf.data.experimental.from_variant(variant, element_spec)

    return LeasedDataset(
        _tf.dataset_from_graph(graph, spec),
        open_lease,
        None,
        parts.has_batches,
        of_places(),
        (("reading", records_at), ("pipeline", open_lease)),
    )


def check_operation(node: NodeDef) -> None:
    """Checks that any process of the cluster computes the same with an operation.

    One that draws at random without a seed is different each time, wherever it runs.
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
    # Operations that take the seed as an input are the stateless ones.
    if any(each.name in ("seed", "seed2") for each in definition.attr):
        raise chief_only_reasons.drawn_with_seed(node.op)


@functools.cache
def _registry() -> tf.Graph:
    return tf.Graph()
