"""Which variables of a step a worker keeps: weights, each with its optimizer slots."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.parameter_server.caching.moving_block import MovingBlock
from tfdist.parameter_server.caching.report import BlockMoves
from tfdist.parameter_server.resources import Numbers
from tfdist.parameter_server.step_graph.rewriting import LocalVariable


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
) -> list[MovingBlock]:
    """Returns the blocks that the variables make which `kept` has chosen."""
    owners = {id(variable.handle): (variable, name) for variable, name in known}
    of_index = [owners[id(handles[each.placeholder])] for each in variables]
    slots: dict[int, list[int]] = {}
    for i, (variable, _) in enumerate(of_index):
        if variable.is_slot:
            slots.setdefault(id(_weight_of(variable)), []).append(i)
    for each in slots.values():
        each.sort(key=lambda i: of_index[i][1])
    weights = [i for i, (variable, _) in enumerate(of_index) if not variable.is_slot]
    # By their names, whatever the order in which a step uses them.
    weights.sort(key=lambda i: of_index[i][1])
    return [
        MovingBlock(
            variables,
            i,
            slots.get(id(of_index[i][0].handle), []),
            counts_of(of_index[i][0]),
        )
        for i in weights
    ]


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
