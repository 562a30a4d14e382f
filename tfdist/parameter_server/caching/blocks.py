"""Blocks that a worker keeps: weights, each with its optimizer slots, and how they move.

Before a step, a block moves between a worker and its ps if it is due: the worker sends its
change, and the ps adds it and answers with the value. A block that is not due has
length 0, so one message carries all blocks, and no branch spans tasks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.parameter_server.caching import decision
from tfdist.parameter_server.caching.report import BlockMoves
from tfdist.parameter_server.exchange.policies import WhenChanged
from tfdist.parameter_server.step_graph.rewriting import LocalVariable
from tfdist.variables.resources import Numbers
from tfdist.variables.variable import ParameterServerVariable

_COLD = -1
"""The age of a block that a worker does not have."""

_CHANGE = 0
"""The index of the sum of the changes among a block's `counts`."""


class BlockState(NamedTuple):
    """The state of a block on a worker.

    Attributes:
        value: The weight, with the worker's own changes.
        base: The weight when it last moved.
        seen: The sum of all changes on the ps then, float64.
        age: How many steps have used it since, int64.
        slots: The values of its slots.
    """

    value: tf.Tensor
    base: tf.Tensor
    seen: tf.Tensor
    age: tf.Tensor
    slots: tuple[tf.Tensor, ...]


@dataclass(eq=False)
class Block:
    """A weight and its slots, and the operations that move them.

    Args:
        variables: The variables of the step.
        weight: The index of the weight among them.
        slots: The indices of its slots.
        name: The name of the weight.
        counts: On its ps: the sum of the norms of all changes that were added to it, how
            often a worker has fetched it, and how often one has added a change.

    Attributes:
        placeholders: The placeholders of the weight and its slots.
    """

    variables: InitVar[Sequence[LocalVariable]]
    weight: int
    slots: Sequence[int]
    name: str
    counts: Numbers

    def __post_init__(self, variables: Sequence[LocalVariable]) -> None:
        self._weight = variables[self.weight]
        self._slots = [variables[i] for i in self.slots]
        self.placeholders = [each.placeholder for each in (self._weight, *self._slots)]

    @property
    def specs(self) -> BlockState:
        """The specs of a worker's state of the block."""
        one, *slots = (
            tf.TensorSpec(each.shape, each.dtype)
            for each in (self._weight, *self._slots)
        )
        seen, age = tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.int64)
        return BlockState(one, one, seen, age, tuple(slots))

    def cold(self) -> BlockState:
        """Returns the initial state of a worker."""
        zeros: BlockState = tf.nest.map_structure(
            lambda each: tf.zeros(each.shape, each.dtype), self.specs
        )
        return zeros._replace(age=tf.constant(_COLD, tf.int64))

    def refresh(
        self,
        state: BlockState,
        handles: Mapping[str, tf.Tensor],
        rate: tf.Tensor,
        exchange: WhenChanged,
    ) -> BlockState:
        """Adds the move of the block if it is due; returns the worker's state of it."""
        weight, counts = self._weight, self.counts
        total = counts.read()[_CHANGE]
        own = _norm(state.value - state.base)
        is_warm = state.age >= 0
        is_due = decision.is_due(
            own,
            total - state.seen,
            decision.bound(exchange.threshold, rate, _norm(state.base)),
            state.age,
            exchange.max_age,
        )
        fetches = is_due | ~is_warm
        # First: what uses one handle runs in the order of the trace.
        self._push(state, handles, own, is_due & is_warm, fetches)
        # Before the value: a change that comes between them is counted once more, not missed.
        counted = counts.read()
        with tf.control_dependencies([counted]):
            value = _fetch(weight, handles[weight.placeholder], fetches)
        total = counted[_CHANGE]
        first = [
            _fetch(each, handles[each.placeholder], ~is_warm) for each in self._slots
        ]

        def fetched() -> tuple[tf.Tensor, ...]:
            new = _restored(value, weight.shape)
            return new, new, total, tf.zeros([], tf.int64)

        def same() -> tuple[tf.Tensor, ...]:
            return state.value, state.base, state.seen, state.age

        # A branch of the worker alone: both sides are on it by now.
        now, base, seen, age = tf.cond(fetches, fetched, same)
        now.set_shape(weight.shape)
        base.set_shape(weight.shape)
        slots = tuple(_first(is_warm, state.slots, first))
        return BlockState(now, base, seen, age, slots)

    def flush(self, state: BlockState, handles: Mapping[str, tf.Tensor]) -> None:
        """Adds operations that send the ps all changes that a worker holds back."""
        own = _norm(state.value - state.base)
        is_used = state.age > 0
        self._push(state, handles, own, is_used & (own != 0), tf.constant(False))
        for slot, value in zip(self._slots, state.slots, strict=True):
            _assign(slot, handles[slot.placeholder], _if(is_used, value))

    def _push(
        self,
        state: BlockState,
        handles: Mapping[str, tf.Tensor],
        own: tf.Tensor,
        is_due: tf.Tensor,
        fetches: tf.Tensor,
    ) -> None:
        """Adds the worker's change on the ps if it is due, and counts."""
        weight = self._weight
        change = _if(is_due, state.value - state.base)
        pushes, fetches = tf.cast(is_due, tf.float64), tf.cast(fetches, tf.float64)
        with tf.device(weight.device):
            _on_some(
                change,
                lambda: tf.raw_ops.AssignAddVariableOp(
                    resource=handles[weight.placeholder],
                    value=_restored(change, weight.shape),
                ),
            )
        self.counts.add(tf.stack([own * pushes, fetches, pushes]))


def kept(
    handles: Mapping[str, tf.Tensor], known: Iterable[ParameterServerVariable]
) -> set[str]:
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
    handles: Mapping[str, tf.Tensor],
    known: Iterable[tuple[ParameterServerVariable, str]],
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
        Block(
            variables,
            i,
            slots.get(id(variable.handle), []),
            name,
            counts_of(variable),
        )
        for i, (variable, name) in enumerate(of_index)
        if not variable.is_slot
    ]
    # In one order: steps of other batches may use them in another, and share the values.
    return sorted(blocks, key=lambda block: block.name)


def counts_of(variable: ParameterServerVariable) -> Numbers:
    """Returns the counts of a weight, which all models and methods share."""
    if variable.counts is None:
        variable.counts = Numbers(variable.device, [0.0, 0.0, 0.0], tf.float64)
    counts: Numbers = variable.counts
    return counts


def moves_of(
    variables: Iterable[tuple[ParameterServerVariable, str]],
) -> tuple[BlockMoves, ...]:
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


def is_weight(variable: ParameterServerVariable) -> bool:
    """Returns True if workers may keep a variable: a non-empty weight of floats."""
    elements = variable.shape.num_elements()
    return bool(variable.is_weight and variable.dtype.is_floating and elements)


def _weight_of(variable: Any) -> Any:
    """Returns the handle of the weight that a variable is a slot of, or None."""
    is_slot = variable is not None and variable.is_slot
    return variable.beside.handle if is_slot and all(variable.shape) else None


def _norm(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the Euclidean norm, a float64."""
    # The square of a half overflows early.
    wide = tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor
    return tf.cast(tf.sqrt(2.0 * tf.nn.l2_loss(wide)), tf.float64)


def _if(is_sent: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the elements of a tensor as a vector, or none of them."""
    return tf.reshape(tensor, [-1])[: _size(tensor.shape, is_sent)]


def _size(shape: tf.TensorShape, is_all: tf.Tensor) -> tf.Tensor:
    return shape.num_elements() * tf.cast(is_all, tf.int32)


def _restored(vector: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns the tensor whose elements a vector has.

    TensorFlow's graph optimizers take the size that a reshape, or an assignment, needs for
    that of the vector, even if the vector is empty and they are not reached. What they
    conclude of a slice of unknown size ends with the slice.
    """
    slice_of_all = tf.slice(vector, [0], [tf.size(vector)])
    return tf.reshape(slice_of_all, shape)


def _fetch(
    variable: LocalVariable, handle: tf.Tensor, is_asked: tf.Tensor
) -> tf.Tensor:
    """Returns the elements of a variable as a vector, or none of them."""
    size = _size(variable.shape, is_asked)
    with tf.device(variable.device):
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
        return tf.reshape(value, [-1])[:size]


def _first(
    is_warm: tf.Tensor, slots: Sequence[tf.Tensor], fetched: Sequence[tf.Tensor]
) -> Sequence[tf.Tensor]:
    """Returns slots: the worker's own, or those that it has fetched."""

    def reshaped() -> list[tf.Tensor]:
        both = zip(fetched, slots, strict=True)
        return [_restored(new, slot.shape) for new, slot in both]

    chosen: Sequence[tf.Tensor] = slots
    if slots:
        chosen = tf.nest.flatten(tf.cond(is_warm, lambda: list(slots), reshaped))
        for each, slot in zip(chosen, slots, strict=True):
            each.set_shape(slot.shape)
    return chosen


def _assign(variable: LocalVariable, handle: tf.Tensor, value: tf.Tensor) -> None:
    """Sets a variable to the elements of a vector, unless it has none."""
    with tf.device(variable.device):
        _on_some(
            value,
            lambda: tf.raw_ops.AssignVariableOp(
                resource=handle, value=_restored(value, variable.shape)
            ),
        )


def _on_some(vector: tf.Tensor, act: Callable[[], Any]) -> None:
    """Adds operations that run only if a vector has elements."""

    def acted() -> tf.Tensor:
        with tf.control_dependencies([act()]):
            return tf.constant(True)

    tf.cond(tf.size(vector) > 0, acted, lambda: tf.constant(False))
