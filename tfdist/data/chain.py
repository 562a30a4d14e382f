"""The transformations of a dataset from its end to the records it reads, as a graph.

The graph of a dataset (a `GraphDef`) is taken apart in two. In the graph of leases, each
reader of TFRecord files is replaced by one that yields where the records are, and all
that changes an example is left out. So it has the elements of the dataset in their
order, and of each only its examples' places. The graph that reads has the rest.

Only the operations listed here are taken apart, because an operation that a later
TensorFlow adds is not known to be the same by leases.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist._support.walks import reached
from tfdist.data import chief_only_reasons
from tfdist.data.file_readers import (
    FILES,
    PART,
    READERS,
    by_name,
    name_of,
    replace_readers,
    source_of,
)
from tfdist.data.transformations import shown
from tfdist.graph.functions import all_called, library_of

_ORDER = PART | {"ShuffleDatasetV3"}
_MAPS = frozenset({"MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2"})
_BATCHES = frozenset({"BatchDatasetV2", "PaddedBatchDatasetV2", "ParallelBatchDataset"})
RECORDS = "records"
"""The name of the dataset that the graph which reads is given."""


@dataclass(frozen=True)
class DatasetParts:
    """The two parts of a dataset.

    Attributes:
        leases: The graph of the leases, each of one string per example.
        reads: The graph of what is done with `RECORDS`.
        end: The name of the last dataset in it.
        has_batches: Whether a lease is of a batch, and has a vector of strings.
        files: The names of all files that it may read, a `TensorProto`.
    """

    leases: Any
    reads: Any
    end: str
    has_batches: bool
    files: Any


def parts_of(definition: Any, places: Any) -> DatasetParts:
    """Takes the graph of a dataset apart.

    The last transformation of `places` is a `flat_map` from names of files to where
    their records are, a string each.

    Raises:
        OnlyTheChiefReads: If one of its transformations is not known to allow that.
    """
    chain = _chain(definition)
    has_batches = sum(node.op in _BATCHES for node in chain)
    if has_batches > 1:
        raise chief_only_reasons.transformed("a second batch")
    return DatasetParts(
        _leases(definition, chain, places),
        _reads(definition, chain),
        next((n.name for n in chain if n.op in _MAPS | _BATCHES), RECORDS),
        bool(has_batches),
        _files(definition, chain[-1]),
    )


def _chain(definition: Any) -> list[Any]:
    """Returns the nodes of the transformations, from the last one to the files."""
    nodes = by_name(definition.node)
    (end,) = (node for node in definition.node if node.op == "_Retval")
    chain = [nodes[source_of(end)]]
    library = library_of(definition)
    while not _joins_files(last := chain[-1], library):
        if last.op not in _ORDER | _MAPS | _BATCHES:
            raise chief_only_reasons.transformed(shown(last.op))
        _check_arguments(last, nodes)
        chain.append(nodes[source_of(last)])
    _check_arguments(chain[-1], nodes)
    _check_repeats(chain)
    return chain


def _joins_files(node: Any, library: Mapping[str, Any]) -> bool:
    called = [library[name] for name in all_called([node], library)]
    reads = any(each.op in READERS for one in called for each in one.node_def)
    return reads and node.op in FILES


def _check_repeats(chain: Sequence[Any]) -> None:
    """Checks that leases would be shuffled again as the dataset is."""
    # TensorFlow joins a repeat with the shuffle right before it, which changes the order.
    # Leases have no map that stands between the two in the dataset.
    for i, node in enumerate(chain):
        if node.op != "RepeatDataset":
            continue
        before = itertools.takewhile(
            lambda each: each.op in PART | _MAPS, chain[i + 1 :]
        )
        between = list(before)
        follows = chain[i + 1 + len(between)].op == "ShuffleDatasetV3"
        if follows and any(each.op in _MAPS for each in between):
            raise chief_only_reasons.repeated_after_map()


def _check_arguments(node: Any, nodes: Mapping[str, Any]) -> None:
    """Checks that nothing but values goes into a transformation besides its elements."""
    for each in (nodes[name_of(reference)] for reference in node.input[1:]):
        kind = each.attr["dtype"].type
        is_seed = node.op == "ShuffleDatasetV3" and kind == _RESOURCE
        if each.op != "Const" or (kind in (_RESOURCE, _VARIANT) and not is_seed):
            raise chief_only_reasons.uses_resource()


def _files(definition: Any, node: Any) -> Any:
    """Returns the names of the files that go into a `flat_map` or an `interleave`."""
    nodes = by_name(definition.node)
    if node.attr["Targuments"].list.type:
        raise chief_only_reasons.uses_resource()
    below = nodes[source_of(node)]
    while below.op in _ORDER:
        _check_arguments(below, nodes)
        below = nodes[source_of(below)]
    if below.op != "TensorSliceDataset" or len(below.input) != 1:
        raise chief_only_reasons.computed_names(shown(below.op))
    names = nodes[source_of(below)]
    if names.op != "Const" or names.attr["dtype"].type != _STRING:
        raise chief_only_reasons.computed_names(shown(below.op))
    return names.attr["value"].tensor


def _leases(definition: Any, chain: Sequence[Any], places: Any) -> Any:
    leases = type(definition)()
    leases.CopyFrom(definition)
    nodes = by_name(leases.node)
    instead: dict[str, str] = {}
    is_batch = False
    for node in (nodes[each.name] for each in reversed(chain)):
        below = source_of(node)
        if node.op in FILES:
            replace_readers(leases, node, places)
            continue
        if node.op in _MAPS:
            instead[node.name] = instead.get(below, below)
            continue
        node.input[0] = instead.get(below, below)
        if node.op in _BATCHES:
            is_batch = True
            _have_batch_of_strings(node)
        _have_strings(node, is_batch)
    (end,) = (node for node in leases.node if node.op == "_Retval")
    end.input[0] = instead.get(source_of(end), source_of(end))
    return _reachable(leases, end.name)


def _reads(definition: Any, chain: Sequence[Any]) -> Any:
    reads = type(definition)()
    reads.CopyFrom(definition)
    nodes = by_name(reads.node)
    below = RECORDS
    for each in reversed(chain):
        if each.op in _MAPS | _BATCHES:
            nodes[each.name].input[0] = below
            below = each.name
    records = reads.node.add(name=RECORDS, op="Placeholder")
    records.attr["dtype"].type = _VARIANT
    records.attr["shape"].shape.SetInParent()
    return _reachable(reads, below)


_STRING, _RESOURCE, _VARIANT = 7, 20, 21  # Numbers of TensorFlow's `DataType`.


def _have_strings(node: Any, is_batch: bool) -> None:
    """Declares that the elements of a dataset are strings."""
    for name in ("output_types", "Toutput_types"):
        if name in node.attr:
            node.attr[name].list.Clear()
            node.attr[name].list.type.append(_STRING)
    shape = node.attr["output_shapes"].list
    shape.Clear()
    added = shape.shape.add()
    if is_batch:
        added.dim.add(size=-1)


def _have_batch_of_strings(node: Any) -> None:
    """Makes any batch a `BatchDatasetV2`."""
    # Its inputs begin with the dataset and the size, and end with whether to drop.
    size, drops = node.input[1], node.input[-1]
    del node.input[1:]
    node.input.extend([size, drops])
    node.op = "BatchDatasetV2"
    for name in set(node.attr) - {"metadata", "output_shapes"}:
        del node.attr[name]
    node.attr["output_types"].list.SetInParent()


def _reachable(definition: Any, end: str) -> Any:
    """Returns the part of a graph that a node needs."""
    nodes = by_name(definition.node)
    found = reached([end], lambda name: map(name_of, nodes[name].input))
    part = type(definition)()
    part.versions.CopyFrom(definition.versions)
    part.node.extend(node for node in definition.node if node.name in found)
    library = library_of(definition)
    part.library.function.extend(library[n] for n in all_called(part.node, library))
    return part
