"""Tables whose looked-up rows a worker keeps, and the rows that move."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfdist.parameter_server.caching import decision
from tfdist.parameter_server.caching.blocks import is_weight
from tfdist.parameter_server.exchange.policies import WhenChanged
from tfdist.parameter_server.step_graph.lookups import Lookups
from tfdist.variables.resources import Numbers
from tfdist.variables.variable import ParameterServerVariable

LARGEST_TABLE = 2**28
"""The bytes of the largest table whose rows workers keep: they keep it whole."""

_PARTS = 4  # value, base, seen, stamp


@dataclass(frozen=True)
class CachedTable:
    """A table, its slots, and what is counted of its rows.

    Attributes:
        weight: The placeholder of its handle in the step.
        slots: The placeholders of its slots.
        variables: The variables of the weight and of the slots.
        name: The name of the weight.
        ids: The names of the tensors with the rows that the step looks up.
        counts: On its ps: of each row, the sum of the norms of all changes.
        moves: On its ps: how many rows were looked up, fetched and pushed.
    """

    weight: str
    slots: tuple[str, ...]
    variables: tuple[ParameterServerVariable, ...]
    name: str
    ids: tuple[str, ...]
    counts: Numbers
    moves: Numbers

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The placeholders of the weight and its slots."""
        return self.weight, *self.slots

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """The specs of a worker's values of it: zeros at first."""
        weight, *slots = self.variables
        one = tf.TensorSpec(weight.shape, weight.dtype)
        rows = weight.shape[:1]
        return [
            one,
            one,
            tf.TensorSpec(rows, tf.float64),
            tf.TensorSpec(rows, tf.int64),
            *(tf.TensorSpec(each.shape, each.dtype) for each in slots),
        ]

    def local_handles(self, handles: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the worker's own handles, by the placeholders that they replace."""
        return dict(
            zip(
                (self.weight, *self.slots), (handles[0], *handles[_PARTS:]), strict=True
            )
        )

    def refresh(
        self,
        rows: tf.Tensor,
        handles: Sequence[tf.Tensor],
        own_handles: Mapping[str, tf.Tensor],
        now: tf.Tensor,
        rate: tf.Tensor,
        exchange: WhenChanged,
    ) -> None:
        """Adds the moves of the rows that a step looks up and that are due.

        The worker's `handles` are as `specs` has them; `own_handles` are those on the ps, and `now`
        is how many steps the worker has run with what it keeps.
        """
        weight, *slots = self.variables
        value, base, seen, stamp, *of_slots = handles
        specs = self.specs
        # Each row once: of two updates of a row, a scatter may keep either.
        rows = tf.cast(tf.unique(tf.reshape(rows, [-1])).y, tf.int32)
        stamps = _gather(stamp, rows, specs[3])
        before = _gather(base, rows, weight)
        change = _gather(value, rows, weight) - before
        own = _norms(change)
        total = self.counts.at(rows)
        # Stamps count from 1: a worker begins with zeros, so 0 is a row that it never
        # had.
        is_warm = stamps > 0
        is_due = decision.is_due(
            own,
            total - _gather(seen, rows, specs[2]),
            decision.bound(exchange.threshold, rate, _norms(before)),
            now + 1 - stamps,
            exchange.max_age,
        )
        fetched = tf.boolean_mask(rows, is_due | ~is_warm)
        self._push(rows, change, own, is_due & is_warm, own_handles, fetched)
        # Before the rows: a change that comes between them is counted once more, not missed.
        counted = self.counts.at(fetched)
        with tf.device(weight.device), tf.control_dependencies([counted]):
            new = _gather(own_handles[self.weight], fetched, weight)
        _set(value, fetched, new)
        _set(base, fetched, new)
        _set(seen, fetched, counted)
        _set(stamp, fetched, tf.fill(tf.shape(fetched), now + 1))
        cold = tf.boolean_mask(rows, ~is_warm)
        for variable, name, handle in zip(slots, self.slots, of_slots, strict=True):
            with tf.device(variable.device):
                new = _gather(own_handles[name], cold, variable)
            _set(handle, cold, new)

    def flush(
        self, handles: Sequence[tf.Tensor], own_handles: Mapping[str, tf.Tensor]
    ) -> None:
        """Adds operations that send all changes that a worker holds back."""
        weight, *slots = self.variables
        value, base, _, stamp, *of_slots = handles
        stamps = tf.raw_ops.ReadVariableOp(resource=stamp, dtype=tf.int64)
        stamps.set_shape(weight.shape[:1])
        rows = tf.cast(tf.where(stamps > 0)[:, 0], tf.int32)
        change = _gather(value, rows, weight)
        change -= _gather(base, rows, weight)
        own = _norms(change)
        self._push(rows, change, own, own != 0, own_handles)
        for variable, name, handle in zip(slots, self.slots, of_slots, strict=True):
            kept = _gather(handle, rows, variable)
            with tf.device(variable.device):
                _set(own_handles[name], rows, kept)

    def _push(
        self,
        rows: tf.Tensor,
        change: tf.Tensor,
        own: tf.Tensor,
        is_due: tf.Tensor,
        own_handles: Mapping[str, tf.Tensor],
        fetched: tf.Tensor | None = None,
    ) -> None:
        """Adds the worker's changes of some rows on the ps, and counts."""
        # A row that is due by its age alone has nothing to send.
        is_due &= own != 0
        pushed, changes = tf.boolean_mask(rows, is_due), tf.boolean_mask(change, is_due)
        norms = tf.boolean_mask(own, is_due)
        used = (0, 0) if fetched is None else (tf.size(rows), tf.size(fetched))
        moves = tf.cast(tf.stack([*used, tf.size(pushed)]), tf.int64)
        weight = self.variables[0]
        with tf.device(weight.device):
            tf.raw_ops.ResourceScatterNdAdd(
                ref=own_handles[self.weight],
                indices=pushed[:, None],
                updates=changes,
                use_locking=True,
            )
        self.counts.add_at(pushed, norms)
        self.moves.add(moves)


def tables_of(
    lookups: Mapping[str, Lookups],
    handles: Mapping[str, tf.Tensor],
    known: Iterable[tuple[ParameterServerVariable, str]],
) -> list[CachedTable]:
    """Returns the tables of a step whose rows workers keep."""
    placeholders = {id(handle): name for name, handle in handles.items()}
    # In one order, regardless of that in which a step uses them.
    of_step = [
        (variable, name, placeholders[id(variable.handle)])
        for variable, name in sorted(known, key=lambda each: each[1])
        if id(variable.handle) in placeholders
    ]
    tables = []
    for variable, name, placeholder in of_step:
        slots = [
            (slot, of_slot)
            for slot, _, of_slot in of_step
            if slot.is_slot and slot.beside.handle is variable.handle
        ]
        if (
            is_table(variable)
            and lookups.get(placeholder) is not None
            and lookups[placeholder].ids
            # Its slots stay with it, so the step must use them by rows alone, too.
            and all(of_slot in lookups for _, of_slot in slots)
        ):
            counts, moves = _counts_of(variable)
            tables.append(
                CachedTable(
                    placeholder,
                    tuple(of_slot for _, of_slot in slots),
                    (variable, *(slot for slot, _ in slots)),
                    name,
                    lookups[placeholder].ids,
                    counts,
                    moves,
                )
            )
    return tables


def is_table(variable: ParameterServerVariable) -> bool:
    """Returns True if workers may keep rows of a variable."""
    size = variable.shape.num_elements() * variable.dtype.size
    return bool(is_weight(variable) and variable.shape.rank and size <= LARGEST_TABLE)


def _counts_of(variable: ParameterServerVariable) -> tuple[Numbers, Numbers]:
    """Returns the counts of a table, which all models and methods share."""
    if variable.row_counts is None:
        zeros = [0.0] * variable.shape[0]
        variable.row_counts = (
            Numbers(variable.device, zeros, tf.float64),
            Numbers(variable.device, [0, 0, 0]),
        )
    return variable.row_counts


def _gather(
    handle: tf.Tensor, rows: tf.Tensor, variable: ParameterServerVariable
) -> tf.Tensor:
    """Returns rows of a variable, or of what has its shape and dtype."""
    values = tf.raw_ops.ResourceGather(
        resource=handle, indices=rows, dtype=variable.dtype
    )
    values.set_shape([None, *variable.shape[1:]])
    return values


def _set(handle: tf.Tensor, rows: tf.Tensor, values: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=rows, updates=values)


def _norms(rows: tf.Tensor) -> tf.Tensor:
    """Returns the Euclidean norm of each row, float64."""
    wide = tf.cast(rows, tf.float32) if rows.dtype.size < 4 else rows
    axes = list(range(1, wide.shape.rank))
    return tf.cast(tf.sqrt(tf.reduce_sum(wide * wide, axes)), tf.float64)
