"""`StepSchedule` under `BoundedStaleness`, as operations on vectors with one slot per worker.

The same decisions as `tfdist.consistency.step_schedule`, which says why; a test
compares the two. All steps that may continue after an event are found at once, in closed form,
since a loop in a graph costs more than the matrices here.
"""

from typing import NamedTuple

import tensorflow as tf

from tfdist.consistency.policy import Phase

IDLE = 0


class GateSlots(NamedTuple):
    """The steps of all workers. Every tensor is of int64.

    Attributes:
        counts: How many steps were allowed to write, and how many have asked to start.
        phase: The phase of each worker's step: a `Phase`, or `IDLE`.
        ticket: How many steps had asked to start before it.
        began: How many writes were complete when it started.
    """

    counts: tf.Tensor
    phase: tf.Tensor
    ticket: tf.Tensor
    began: tf.Tensor


class Release(NamedTuple):
    """The steps that may continue after an event, per slot.

    Attributes:
        slots: The steps afterwards.
        goes_on: Whether the step may start or write now.
        writes: Whether it may write now.
        staleness: How many writes of others it has missed, where it may write now.
    """

    slots: GateSlots
    goes_on: tf.Tensor
    writes: tf.Tensor
    staleness: tf.Tensor


def at(
    slots: GateSlots, slot: tf.Tensor, phase: int, ticket: tf.Tensor | None
) -> GateSlots:
    """Returns the slots with one of them in another phase.

    None takes a new ticket. If the worker's step has another one by now, nothing changes.
    """
    is_it = tf.equal(tf.range(tf.size(slots.phase), dtype=tf.int64), slot)
    if ticket is None:
        taken = slots.counts[1]
        slots = slots._replace(
            ticket=tf.where(is_it, taken, slots.ticket), counts=slots.counts + [0, 1]
        )
    else:
        is_it &= tf.equal(slots.ticket, ticket)
    return slots._replace(phase=tf.where(is_it, tf.cast(phase, tf.int64), slots.phase))


def release(slots: GateSlots, bound: int) -> Release:
    """Releases all steps that may continue."""
    written, asked = tf.unstack(slots.counts)
    is_ready = tf.equal(slots.phase, Phase.READY)
    is_computing = tf.equal(slots.phase, Phase.COMPUTING)
    is_active = is_ready | is_computing
    # The number of writes by others that each step can still bear before its own.
    room = slots.began + (bound - written)
    # In every matrix, the row is a step, and the column one that is compared with it.
    has_no_more_room = room <= _column(room)
    has_older_ticket = slots.ticket < _column(slots.ticket)

    margin = room + 1 - _count(has_no_more_room & is_active)
    writes = is_ready & ~_is_held(
        is_computing, is_ready, ~has_no_more_room, margin, slots.ticket
    )
    staleness = bound - room + _count(has_older_ticket & writes)

    # The others have as much room less, and as many with no more room less.
    num_written = _count(writes)
    is_active &= ~writes
    room -= num_written
    margin = room + 1 - _count(has_no_more_room & is_active)
    phase = tf.where(writes, tf.cast(Phase.WRITING, tf.int64), slots.phase)
    writing = _count(tf.equal(phase, Phase.WRITING))
    is_waiting = tf.equal(phase, Phase.STARTING)
    most = _most_new(bound - writing, room, margin, is_active)
    starts = is_waiting & (_count(has_older_ticket & is_waiting) < most)

    written += num_written
    return Release(
        GateSlots(
            tf.stack([written, asked]),
            tf.where(starts, tf.cast(Phase.COMPUTING, tf.int64), phase),
            slots.ticket,
            tf.where(starts, written - writing, slots.began),
        ),
        starts | writes,
        writes,
        staleness,
    )


def _is_held(
    is_computing: tf.Tensor,
    is_ready: tf.Tensor,
    has_more_room: tf.Tensor,
    margin: tf.Tensor,
    ticket: tf.Tensor,
) -> tf.Tensor:
    """Returns which steps may not write yet, lest a computing one gets too stale.

    Ready steps write one after the other, the oldest first. `margin` is how many with more
    room may write before each.
    """
    passes = tf.cast(has_more_room & is_ready, tf.int64)
    up_to = tf.cast(_column(ticket) <= ticket, tf.int64)
    too_many = tf.matmul(passes, up_to) > _column(margin)
    return tf.reduce_any(_column(is_computing) & has_more_room & too_many, axis=0)


def _most_new(
    room_of_new: tf.Tensor, room: tf.Tensor, margin: tf.Tensor, is_active: tf.Tensor
) -> tf.Tensor:
    """Returns how many steps may start now, all with the same room."""
    # These may write after the new ones, and lose room by them; others write before.
    has_no_less = is_active & (room >= room_of_new)
    of_others = tf.reduce_min(tf.where(has_no_less, margin, tf.int64.max))
    before = _count(is_active & (room <= room_of_new))
    return tf.minimum(of_others, room_of_new + 1 - before)


def _column(vector: tf.Tensor) -> tf.Tensor:
    return tf.reshape(vector, [-1, 1])


def _count(flags: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(flags, tf.int64), axis=-1)
