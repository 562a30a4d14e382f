"""Which variables of a step a worker keeps: weights, each with its optimizer slots."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.parameter_server.caching.report import BlockMoves
from tfdist.parameter_server.resources import Numbers
from tfdist.parameter_server.step_graph.rewriting import LocalVariable


@dataclass(frozen=True)
class Block:
    """A weight and its slots.

    Attributes:
        weight: Its index among the variables of the step.
        slots: The indices of its slots.
        name: The name of the weight.
        counts: On its ps: the sum of the norms of all changes that were added to it, how
            often a worker has fetched it, and how often one has added a change.
    """

    weight: int
    slots: tuple[int, ...]
    name: str
    counts: Numbers


def kept(handles: Mapping[str, Any], known: Iterable[Any]) -> set[str]:
    """Returns the placeholders of what a worker keeps of the variables of a step."""
    variables = {id(each.handle): each for each in known}
    weights = {
        id(variable.handle)
        for handle in handles.values()
        if (variable := variables.get(id(handle))) is not None and is_weight(variable)
    }
    return {
        name
        for name, handle in handles.items()
        if id(handle) in weights or id(_weight_of(variables.get(id(handle)))) in weights
    }


def blocks_of(
    variables: Sequence[LocalVariable],
    handles: Mapping[str, Any],
    known: Iterable[tuple[Any, str]],
) -> list[Block]:
    """Returns the blocks that the variables make which `kept` has chosen."""
    owners = {id(variable.handle): (variable, name) for variable, name in known}
    of_index = [owners[id(handles[each.placeholder])] for each in variables]
    slots: dict[int, list[int]] = {}
    for i, (variable, _) in enumerate(of_index):
        if variable.is_slot:
            slots.setdefault(id(_weight_of(variable)), []).append(i)
    for each in slots.values():
        each.sort(key=lambda i: of_index[i][1])
    blocks = [
        Block(i, tuple(slots.get(id(variable.handle), ())), name, counts_of(variable))
        for i, (variable, name) in enumerate(of_index)
        if not variable.is_slot
    ]
    # Whatever the order in which a step uses them.
    return sorted(blocks, key=lambda block: block.name)


def counts_of(variable: Any) -> Numbers:
    """Returns the counts of a weight, which all models and methods share."""
    if variable.counts is None:
        variable.counts = Numbers(variable.device, [0.0, 0.0, 0.0], tf.float64)
    counts: Numbers = variable.counts
    return counts


def moves_of(variables: Iterable[tuple[Any, str]]) -> tuple[BlockMoves, ...]:
    """Returns how often each block has moved, of the strategy's variables and names."""
    moves = []
    for variable, name in variables:
        if variable.counts is not None:
            _, fetched, pushed = variable.counts.read().numpy()
            size = variable.shape.num_elements() * variable.dtype.size
            moves.append(BlockMoves(name, size, int(fetched), int(pushed)))
        if variable.row_counts is not None:
            looked_up, fetched, pushed = variable.row_counts[1].read().numpy()
            size = variable.shape[1:].num_elements() * variable.dtype.size
            rows = int(fetched), int(pushed), int(looked_up)
            moves.append(BlockMoves(name, size, *rows))
    return tuple(moves)


def is_weight(variable: Any) -> bool:
    """Whether workers may keep a variable: a weight of numbers that can be learned."""
    elements = variable.shape.num_elements()
    return bool(variable.is_weight and variable.dtype.is_floating and elements)


def _weight_of(variable: Any) -> Any:
    """Returns the handle of the weight that a variable is a slot of, or None."""
    is_slot = variable is not None and variable.is_slot
    return variable.beside.handle if is_slot and all(variable.shape) else None
