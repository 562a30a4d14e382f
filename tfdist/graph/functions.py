"""The functions that the operations of a `GraphDef` call. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

PYTHON_OPS = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})
"""The operations that call Python functions of the process which made them."""


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
    """Whether a `GraphDef`, or a function in it, calls Python."""
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes.extend(function.node_def)
    return any(node.op in PYTHON_OPS for node in nodes)
