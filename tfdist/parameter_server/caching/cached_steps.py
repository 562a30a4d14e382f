"""Steps on blocks that a worker keeps, of which some move before each step.

A worker sends the changes that are due, of any length, and the ps adds them and answers with
the values that are asked for. What is not due has length 0, so one message carries it all,
and no branch spans tasks.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.parameter_server.caching import decision
from tfdist.parameter_server.caching.blocks import Block, blocks_of, kept
from tfdist.parameter_server.caching.worker_cache import Kept
from tfdist.parameter_server.exchange import WhenChanged
from tfdist.parameter_server.exchange_report import Exchanges
from tfdist.parameter_server.step_graph.local import LocalSteps, LocalVariable
from tfdist.parameter_server.step_graph.repetition import State
from tfdist.parameter_server.step_graph.step_graph import StepGraph, captures_of

_COLD = -1
"""The age of a block that a worker does not have."""

_CHANGE = 0
"""The index of the sum of the changes among a block's `counts`."""


class _BlockState(NamedTuple):
    """What a worker has of a block.

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


class CachedSteps:
    """A step on the blocks that its worker keeps.

    Args:
        step: The step, which reads and writes the variables themselves.
        strategy: The `ParameterServerStrategy`, whose exchange is a `WhenChanged`.
        learning_rate: Returns it, where a step is traced.
        others: Where such steps find each other that keep the same blocks, and share them:
            one for each structure of a batch.

    Attributes:
        kept: What a worker keeps.
        first: The first of those that share it.
        flush: Of the first, a `ConcreteFunction`: it sends the ps what a worker has kept
            back, and frees what it has kept.
    """

    def __init__(
        self,
        step: StepGraph,
        strategy: Any,
        learning_rate: Callable[[], Any],
        others: dict[Any, "CachedSteps"],
    ) -> None:
        extended = strategy.extended
        self._exchange: WhenChanged = strategy.exchange
        self._learning_rate = learning_rate
        self._function = step.function
        captured = [outside for outside, _ in step.function.graph.captures]
        known = extended.of_handles(captured)
        variables = [variable for variable, _ in known]
        self._local = LocalSteps(
            step, lambda _: True, lambda handles: kept(handles, variables)
        )
        handles = self._local.captured
        self._blocks = blocks_of(self._local.variables, handles, known)
        self._names = {id(variable.handle): name for variable, name in known}
        of_blocks = [
            id(handles[each.placeholder])
            for block in self._blocks
            for each in self._variables_of(block)
        ]
        self.first: CachedSteps = others.setdefault(tuple(of_blocks), self)
        if self.first is not self:
            self.kept = self.first.kept
            return
        self.kept = Kept(self.state_specs)
        # Its branches are functions of their own, which live as long as the graph.
        self._flush_graph = StepGraph(
            strategy, lambda *state: self._flush(state), self.state_specs
        )
        with strategy.scope():
            traced = tf.function(self._forget, autograph=False)
            self.flush = traced.get_concrete_function()

    def note(self, exchanges: Exchanges) -> None:
        """Notes what becomes of the variables of the step."""
        local = self._local

        def names(indices: Iterable[int]) -> list[str]:
            variables = [local.variables[i] for i in indices]
            return [self._names[id(local.captured[v.placeholder])] for v in variables]

        others = [id(each) for each in local.in_each_step]
        slots = names(i for block in self._blocks for i in block.slots)
        exchanges.note(
            1,
            names(block.weight for block in self._blocks),
            slots,
            [self._names[each] for each in others if each in self._names],
            slots,
        )

    @property
    def state_specs(self) -> list[tf.TensorSpec]:
        """The specs of what a worker keeps."""
        specs = []
        for block in self._blocks:
            weight, *slots = self._variables_of(block)
            one = tf.TensorSpec(weight.shape, weight.dtype)
            of_slots = tuple(tf.TensorSpec(each.shape, each.dtype) for each in slots)
            scalar = tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.int64)
            specs.append(_BlockState(one, one, *scalar, of_slots))
        flat: list[tf.TensorSpec] = tf.nest.flatten(specs)
        return flat

    def around(self, run: Callable[[State], tuple[Any, State]]) -> Any:
        """Adds steps to the function being traced.

        Args:
            run: Takes what the worker has kept, adds the steps, and returns their result
                and what the worker is to keep.

        Returns:
            The result.
        """
        handles = self.kept.handles()
        result, state = run(self.kept.read(handles, self._cold))
        self.kept.write(handles, state)
        return result

    def run(self, batch: Sequence[tf.Tensor], state: State) -> tuple[Any, State]:
        """Adds one step, before which blocks move, to the function being traced."""
        captured = captures_of(self._function)
        handles = self._local.handles(captured)
        rate = tf.cast(self._learning_rate(), tf.float64)
        states = self._unflattened(state)
        states = [
            self._moved(block, of_block, handles, rate)
            for block, of_block in zip(self._blocks, states, strict=True)
        ]
        values: list[Any] = [None] * len(self._local.variables)
        for block, before in zip(self._blocks, states, strict=True):
            values[block.weight] = before.value
            for i, slot in zip(block.slots, before.slots, strict=True):
                values[i] = slot
        result, values = self._local.compute(batch, captured, values)
        states = [
            before._replace(
                value=values[block.weight],
                slots=tuple(values[i] for i in block.slots),
                age=before.age + 1,
            )
            for block, before in zip(self._blocks, states, strict=True)
        ]
        return result, tf.nest.flatten(states)

    def _flush(self, state: State) -> None:
        """Adds what sends all that a worker has kept back."""
        handles = self._local.handles(captures_of(self._function))
        for block, before in zip(self._blocks, self._unflattened(state), strict=True):
            weight, *slots = self._variables_of(block)
            own = _norm(before.value - before.base)
            is_due = (before.age > 0) & (own > 0)
            self._push(block, weight, before, handles, own, is_due, fetches=None)
            for slot, value in zip(slots, before.slots, strict=True):
                _assign(slot, handles[slot.placeholder], _if(before.age > 0, value))

    def _forget(self) -> None:
        """Adds what sends all that a worker has kept back, and frees what it has kept."""
        handles = self.kept.handles()
        self._flush_graph.add(self.kept.read(handles, self._cold), "flush_0")
        self.kept.forget(handles)

    def _cold(self) -> list[tf.Tensor]:
        """Returns what a worker begins with."""
        states = []
        for spec in self._unflattened(self.state_specs):
            zeros = tf.nest.map_structure(
                lambda each: tf.zeros(each.shape, each.dtype), spec
            )
            states.append(zeros._replace(age=tf.constant(_COLD, tf.int64)))
        flat: list[tf.Tensor] = tf.nest.flatten(states)
        return flat

    def _unflattened(self, flat: Sequence[Any]) -> list[_BlockState]:
        structure = [_BlockState(0, 0, 0, 0, (0,) * len(b.slots)) for b in self._blocks]
        states: list[_BlockState] = tf.nest.pack_sequence_as(structure, list(flat))
        return states

    def _variables_of(self, block: Block) -> list[LocalVariable]:
        return [self._local.variables[i] for i in (block.weight, *block.slots)]

    def _moved(
        self, block: Block, state: _BlockState, handles: Any, rate: tf.Tensor
    ) -> _BlockState:
        """Returns what the worker has of a block after it has moved, if it is due."""
        weight, *slots = self._variables_of(block)
        with tf.device(weight.device):
            total = block.counts.read()[_CHANGE]
        own = _norm(state.value - state.base)
        is_warm = state.age >= 0
        bound = decision.bound(self._exchange.threshold, rate, _norm(state.base))
        is_due = decision.is_due(
            own, total - state.seen, bound, state.age, self._exchange.max_age
        )
        fetches = is_due | ~is_warm
        total, value = self._push(
            block, weight, state, handles, own, is_due & is_warm, fetches
        )
        first = [_fetch(each, handles[each.placeholder], ~is_warm) for each in slots]

        def fetched() -> tuple[tf.Tensor, ...]:
            new = _restored(value, weight.shape)
            return new, new, total, tf.zeros([], tf.int64)

        def same() -> tuple[tf.Tensor, ...]:
            return state.value, state.base, state.seen, state.age

        now = tf.cond(fetches, fetched, same)
        for each in now[:2]:
            each.set_shape(weight.shape)
        return _BlockState(*now, tuple(_first(is_warm, state.slots, first)))

    def _push(
        self,
        block: Block,
        weight: LocalVariable,
        state: _BlockState,
        handles: Any,
        own: tf.Tensor,
        is_due: tf.Tensor,
        fetches: tf.Tensor | None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Adds the worker's change on the ps if it is due.

        Returns:
            The sum of all changes, and the value of the weight, if it `fetches` it.
        """
        handle = handles[weight.placeholder]
        change = _if(is_due, state.value - state.base)
        pushed = tf.cast(is_due, tf.float64)
        fetched = tf.zeros([], tf.float64) if fetches is None else fetches
        counts = tf.stack([own * pushed, tf.cast(fetched, tf.float64), pushed])
        with tf.device(weight.device):
            _on_some(
                change,
                lambda: tf.raw_ops.AssignAddVariableOp(
                    resource=handle, value=_restored(change, weight.shape)
                ),
            )
            block.counts.add(counts)
            total = block.counts.read()[_CHANGE]
        if fetches is None:
            return total, change
        return total, _fetch(weight, handle, fetches)


def _norm(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the Euclidean norm, a float64."""
    wide = tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor
    return tf.cast(tf.sqrt(2.0 * tf.nn.l2_loss(wide)), tf.float64)


def _if(is_sent: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the elements of a tensor as a vector, or none of them."""
    return tf.reshape(tensor, [-1])[: _size(tensor.shape, is_sent)]


def _size(shape: tf.TensorShape, is_all: tf.Tensor) -> tf.Tensor:
    return shape.num_elements() * tf.cast(is_all, tf.int32)


def _restored(vector: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns the tensor of which a vector has all elements.

    TensorFlow's constant folding takes the size that a reshape, or an assignment, needs for
    that of the vector, even if the vector is empty and they are not reached. What it
    concludes of a slice of unknown size ends with the slice.
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
    """Returns slots: those that a worker has, or what it has fetched."""

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
    """Adds what is done only if a vector has elements."""

    def acted() -> tf.Tensor:
        with tf.control_dependencies([act()]):
            return tf.constant(True)

    tf.cond(tf.size(vector) > 0, acted, lambda: tf.constant(False))
