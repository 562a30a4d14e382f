"""The functions that the operations of a `GraphDef` call."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

PYTHON_OPS = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})
"""The operations that call Python functions of the process which made them."""

# The fifth input of `DataServiceDataset`, in each of its versions.
_JOB_NAME = 4


def function_attrs(node: Any) -> Iterator[Any]:
    """Yields the attributes of a node that name a function."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        yield from value.list.func


def library_of(definition: Any) -> dict[str, Any]:
    """Returns the functions of a `GraphDef` by their names: a `FunctionDef` each."""
    return {each.signature.name: each for each in definition.library.function}


def all_called(nodes: Iterable[Any], library: Mapping[str, Any]) -> list[str]:
    """Returns the names of all functions that some nodes call, directly or not."""
    pending = list(nodes)
    found: dict[str, None] = {}
    while pending:
        for function in function_attrs(pending.pop()):
            if function.name in library and function.name not in found:
                found[function.name] = None
                pending += library[function.name].node_def
    return list(found)


def all_nodes(definition: Any) -> Iterator[Any]:
    """Yields the nodes of a `GraphDef`, and of all functions that it calls."""
    library = library_of(definition)
    yield from definition.node
    for name in all_called(definition.node, library):
        yield from library[name].node_def


def calls_python(definition: Any) -> bool:
    """Returns True if a `GraphDef`, or a function in it, calls Python."""
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes.extend(function.node_def)
    return any(node.op in PYTHON_OPS for node in nodes)


def shares_a_job(definition: Any) -> bool:
    """Returns True if a `GraphDef` reads from tf.data service by the name of a job.

    All who name a job share its elements: each gets others.
    """
    texts = {
        node.name: b"".join(node.attr["value"].tensor.string_val)
        for node in definition.node
        if node.op == "Const"
    }
    return any(
        texts.get(node.input[_JOB_NAME].partition(":")[0])
        for node in definition.node
        if node.op.startswith("DataServiceDataset")
    )


def renamed(definition: Any, suffix: str) -> list[Any]:
    """Renames the functions of a `GraphDef`, and returns them, unknown to TensorFlow."""
    made = list(definition.library.function)
    names = {each.signature.name: f"{each.signature.name}_{suffix}" for each in made}
    for each in made:
        each.signature.name = names[each.signature.name]
    for each in definition.library.gradient:
        each.function_name = names.get(each.function_name, each.function_name)
        each.gradient_func = names.get(each.gradient_func, each.gradient_func)
    for nodes in (definition.node, *(each.node_def for each in made)):
        for node in nodes:
            # A node may call a function by having its name for a type.
            node.op = names.get(node.op, node.op)
            for function in function_attrs(node):
                function.name = names.get(function.name, function.name)
    return made


def digest(definition: Any) -> str:
    """Returns a key that is equal for two `GraphDef` that compute the same.

    TensorFlow's own names of each trace of a function, and of datasets, do not count.
    """
    library = library_of(definition)
    known: dict[str, str] = {}

    def of_function(name: str) -> str:
        if name not in known:
            copy = type(library[name])()
            copy.CopyFrom(library[name])
            copy.signature.name = ""
            known[name] = of_nodes(copy.node_def, copy)
        return known[name]

    def of_nodes(nodes: Any, owner: Any) -> str:
        for node in nodes:
            node.ClearField("experimental_debug_info")
            # A dataset's name, with its number in the process.
            node.attr.pop("metadata", None)
            for function in function_attrs(node):
                if function.name in library:
                    function.name = of_function(function.name)
        return hashlib.sha256(owner.SerializeToString(deterministic=True)).hexdigest()

    main = type(definition)()
    main.node.extend(definition.node)
    return of_nodes(main.node, main)
