"""From the name of a file to where its records are, in place of the records."""

from typing import Any

from tfdist.data import chief_only_reasons
from tfdist.data.transformations import shown
from tfdist.graph.functions import library_of

# Its second version is emitted for places within a file, and is not taken apart.
READERS = frozenset({"TFRecordDataset"})
FILES = frozenset(
    {
        "FlatMapDataset",
        "InterleaveDataset",
        "LegacyParallelInterleaveDatasetV2",
        "ParallelInterleaveDatasetV4",
    }
)
# They choose among elements, and order them, of any kind.
PART = frozenset(
    {
        "AssertCardinalityDataset",
        "OptionsDataset",
        "PrefetchDataset",
        "RepeatDataset",
        "ShardDataset",
        "SkipDataset",
        "TakeDataset",
    }
)
# The other operations of a function from the name of a file to its records. None of
# them could make another name of it.
_NAMES = frozenset({"Const", "Identity", "NoOp", "Reshape", "TensorSliceDataset"})
_STRING = 7  # The number of TensorFlow's `DataType`.


def replace_readers(definition: Any, node: Any, places: Any) -> None:
    """Makes a `flat_map` or `interleave` of files yield where their records are.

    The elements of `node` are names of files. `definition` gets other functions.
    `places` is as `chain.parts_of` takes it.
    """
    library = library_of(definition)
    known = set(library)
    for function in places.library.function:
        if function.signature.name not in known:
            definition.library.function.add().CopyFrom(function)
    (template,) = (each for each in places.node if each.op == "FlatMapDataset")
    made: dict[str, str] = {}

    def replaced(name: str) -> str:
        if name in made:
            return made[name]
        made[name] = f"{name}_places"
        copy = type(library[name])()
        copy.CopyFrom(library[name])
        copy.signature.name = made[name]
        # It will look into files by Python, which to TensorFlow has a state.
        copy.signature.is_stateful = True
        reader = _reader_in(copy)
        if reader.op in FILES:
            reader.attr["f"].func.name = replaced(reader.attr["f"].func.name)
        else:
            _yield_places(copy, reader, template)
        definition.library.function.add().CopyFrom(copy)
        return made[name]

    node.attr["f"].func.name = replaced(node.attr["f"].func.name)


def _reader_in(function: Any) -> Any:
    """Returns the node of a function that reads the files, or joins readers of them."""
    nodes = by_name(function.node_def)
    for node in function.node_def:
        if node.op not in PART | FILES | READERS | _NAMES:
            raise chief_only_reasons.within_interleave(shown(node.op))
        if node.op in READERS and not _is_empty(nodes.get(name_of(node.input[1]))):
            raise chief_only_reasons.compressed()
    for node in function.node_def:
        if _is_name(node):
            raise chief_only_reasons.computed_names("a name of a file")
    if sum(node.op in FILES | READERS for node in function.node_def) != 1:
        raise chief_only_reasons.computed_names("records of other files")
    (result,) = function.ret.values()
    node = nodes.get(name_of(result))
    while node is not None and node.op in PART | {"Identity"}:
        node = nodes.get(source_of(node))
    if node is None or node.op not in READERS | FILES:
        raise chief_only_reasons.transformed("a dataset of datasets")
    return node


def _is_name(node: Any) -> bool:
    """Returns True if a node is a constant string that is not empty."""
    is_string = node.op == "Const" and node.attr["dtype"].type == _STRING
    return is_string and not _is_empty(node)


def _is_empty(node: Any) -> bool:
    """Returns True if a node is a constant without values, or with an empty string."""
    if node is None or node.op != "Const":
        return False
    tensor = node.attr["value"].tensor
    sizes = [each.size for each in tensor.tensor_shape.dim]
    has_value = any(tensor.string_val) or bool(tensor.tensor_content.strip(b"\0"))
    return 0 in sizes or (not sizes and not has_value)


def _yield_places(function: Any, reader: Any, template: Any) -> None:
    """Replaces a reader of files by a `flat_map` to where their records are."""
    files = function.node_def.add(name=f"{reader.name}_files", op="TensorDataset")
    files.input.append(reader.input[0])
    files.attr["Toutput_types"].list.type.append(_STRING)
    files.attr["output_shapes"].list.shape.add(unknown_rank=True)
    waits = [each for each in reader.input if each.startswith("^")]
    name = reader.name
    reader.CopyFrom(template)
    reader.name = name
    del reader.input[:]
    reader.input.extend([f"{files.name}:handle:0", *waits])


def by_name(nodes: Any) -> dict[str, Any]:
    """Returns nodes by their names."""
    return {node.name: node for node in nodes}


def name_of(reference: str) -> str:
    """Returns the name of the node that an input of another one refers to."""
    return reference.removeprefix("^").partition(":")[0]


def source_of(node: Any) -> str:
    """Returns the name of the dataset that a dataset reads."""
    return name_of(node.input[0])
