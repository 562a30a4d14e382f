"""The calls of a model's layers, with those of the parts in place of split layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras

from tfdist.research.model_parallel.splitting.dense import Dense
from tfdist.research.model_parallel.splitting.embedding import Embedding
from tfdist.research.model_parallel.splitting.pieces import Pieces


class CallNode(Protocol):
    """A call of a layer in a functional model, as Keras keeps it."""

    @property
    def operation(self) -> keras.Operation:
        """The layer."""

    @property
    def input_tensors(self) -> Sequence[keras.KerasTensor]:
        """The symbolic tensors that it takes."""

    @property
    def outputs(self) -> Sequence[keras.KerasTensor]:
        """The symbolic tensors that it returns."""

    @property
    def arguments(self) -> Any:
        """The arguments of the call, which `fill_in` takes from values."""


class _Between:
    """Stands for a tensor between the pieces of a layer."""


@dataclass(frozen=True, eq=False)
class PieceNode:
    """A call of a piece of a split layer, as Keras has calls of layers.

    `part` is the number of the part: None for the join and for what cuts.
    """

    operation: keras.Operation
    input_tensors: tuple[Any, ...]
    outputs: tuple[Any, ...]
    layer: keras.Layer
    part: int | None = None
    is_cut: bool = False

    @property
    def arguments(self) -> Any:
        """This node, which fills in the arguments itself."""
        return self

    def fill_in(self, values: dict[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of the call, of the values of symbolic tensors."""
        found = [values[id(each)] for each in self.input_tensors]
        is_join = self.part is None and not self.is_cut
        return ((found,) if is_join else tuple(found)), {}


def pieces_of(operation: keras.Operation) -> Pieces | None:
    """Returns the pieces of a layer; None if it is not split."""
    is_split = isinstance(operation, Dense | Embedding)
    return operation.pieces() if is_split else None


def with_pieces(nodes: Sequence[CallNode], outputs: Iterable[Any]) -> list[CallNode]:
    """Returns the calls of layers, those of split ones as the calls of their pieces.

    Where a layer split by rows takes the output of one that is split by columns into as
    many parts, each part takes that of the other's part: nothing is joined and cut
    again, which is Megatron's pair. Each of the nodes comes after those whose results
    it takes.
    """
    split = {id(n): (n, found) for n in nodes if (found := pieces_of(n.operation))}
    joined = {id(n.outputs[0]): p.joined for n, p in split.values() if p.joined}
    paired = {
        id(node)
        for node, pieces in split.values()
        if pieces.cut and pieces.cut == joined.get(id(node.input_tensors[0]))
    }
    wanted = {
        id(each)
        for node in nodes
        if id(node) not in paired
        for each in node.input_tensors
    }
    wanted.update(map(id, outputs))
    of_parts: dict[int, list[Any]] = {}
    found_nodes: list[CallNode] = []
    for node in nodes:
        if id(node) not in split:
            found_nodes.append(node)
            continue
        _, pieces = split[id(node)]
        (source,), layer, output = node.input_tensors, node.operation, node.outputs[0]
        taken = [source] * len(pieces.parts)
        if id(node) in paired:
            taken = of_parts[id(source)]
        elif pieces.cuts:
            taken = [_Between() for _ in pieces.parts]
            found_nodes += [
                PieceNode(cut, (source,), (each,), layer, is_cut=True)
                for cut, each in zip(pieces.cuts, taken, strict=True)
            ]
        given = of_parts[id(output)] = [_Between() for _ in pieces.parts]
        found_nodes += [
            PieceNode(part, (taken[at],), (given[at],), layer, at)
            for at, part in enumerate(pieces.parts)
        ]
        # Between the layers of a pair, nothing joins what the next would cut again.
        if id(output) not in joined or id(output) in wanted:
            join = PieceNode(pieces.join, tuple(given), tuple(node.outputs), layer)
            found_nodes.append(join)
    return found_nodes
