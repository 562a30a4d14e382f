"""The rounds of one ps: who may read, and whose gradient counts there."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.variables.resources import Numbers, Resource

COUNTED = tf.int64.max
"""The step of a gradient that an accumulator takes."""

DROPPED = -1
"""The step of a gradient that it drops."""


def step_of(counts: tf.Tensor) -> tf.Tensor:
    """Returns the step of a gradient, given whether it counts."""
    return tf.where(counts, tf.constant(COUNTED), tf.constant(DROPPED, tf.int64))


# Steps that wait for one round must not take what wakes those that wait for another.
_QUEUES = 4

# Steps are in flight in some order, and the number of those is far smaller.
_REMEMBERED = 2**14


class Turnstile:
    """Opens a ps to the steps of a round, and counts the gradients that arrive.

    All ps have one, and no step asks one ps about another: each ps knows its round, and
    releases the steps that wait for it once its own part of an update is complete.

    The number of the round is authoritative, and what is in the queues only wakes steps
    up: those look at the number again, so that a surplus does no harm. Waiting holds no
    thread of the ps.

    Args:
        device: The device of the ps.
        num_workers: How many workers may wait at the same time.
        enough: How many gradients make an update.
    """

    def __init__(self, device: str, num_workers: int, enough: int) -> None:
        self.device = device
        self._num_workers = num_workers
        self._enough = enough
        # The round, and the number of its gradients so far: in one variable, so that an
        # update changes both at the same moment.
        self._state = Numbers(device, [0, 0])
        self._counted = Numbers(device, [-1] * _REMEMBERED)
        self._counted_in = Numbers(device, [-1] * _REMEMBERED)
        self._is_open = Numbers(device, [0])
        self._lock = Resource("MutexV2", device)
        queue = {"component_types": [tf.int32], "shapes": [[]], "capacity": -1}
        self._wake_ups = [
            Resource("FIFOQueueV2", device, **queue) for _ in range(_QUEUES)
        ]

    def enter(self, first: tf.Tensor) -> tf.Tensor:
        """Waits for a round, and returns the current one.

        Args:
            first: The number of the round to wait for.

        Returns:
            The number of the round whose weights are here now: `first` or a later one, or
            an earlier one if `let_all_pass` was called.
        """
        with tf.device(self.device):
            first = tf.identity(first)

            def look() -> tuple[tf.Tensor, tf.Tensor]:
                return self._state.read()[0], self._is_open.read()[0]

            def waits(current: tf.Tensor, is_open: tf.Tensor) -> tf.Tensor:
                return (current < first) & (is_open == 0)

            def wait(current: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                # A step that comes long before its round waits for rounds on the way.
                next_one = tf.minimum(first, current + _QUEUES - 1)
                with tf.control_dependencies(self._woken(next_one)):
                    return look()

            # One look after the other: an iteration that ran ahead would take a wake-up
            # in vain.
            current, _ = tf.while_loop(waits, wait, look(), parallel_iterations=1)
            return tf.identity(current, name="entered")

    def admit(self, computed_in: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        """Decides whether a gradient counts, once for each.

        Args:
            computed_in: The number of the round from whose weights it was computed.
            batch: The number of its batch. If a lost worker and its substitute have
                both computed the gradient of a batch, one counts.

        Returns:
            `COUNTED` or `DROPPED`.
        """
        with tf.device(self.device):
            computed_in = tf.identity(computed_in)

            def counts(current: tf.Tensor, so_far: tf.Tensor) -> tf.Tensor:
                return (computed_in == current) & (so_far < self._enough)

            return step_of(self._add_if(counts, batch, computed_in)[0])

    def _add_if(
        self,
        counts: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        batch: tf.Tensor,
        known: tf.Tensor,
        after: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], list[Any]] = lambda *_: [],
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Adds a gradient to the round, if it counts and is not in it.

        Before the next one does the same, `after` is called with the number of the round, of
        its gradients then, and whether this one was added. Returns whether it was, and the round
        in which its batch counts, or -1.
        """
        batch = tf.identity(batch)
        # A ring, which has the batch itself next to it: an older one with this place is
        # gone.
        place = batch % _REMEMBERED
        # Nobody may have the lock while its gradient is being computed.
        with tf.control_dependencies([known]):
            lock = tf.raw_ops.MutexLock(mutex=self._lock.handle)
        with tf.control_dependencies([lock]):
            current, so_far = tf.unstack(self._state.read())
            was_counted = self._counted.at(place) == batch
            counted_in = tf.where(was_counted, self._counted_in.at(place), -1)
        adds = counts(current, so_far) & ~was_counted
        # The lock covers the writes only if these wait for what was read under it.
        with tf.control_dependencies([adds, counted_in]):
            number = tf.cast(adds, tf.int64)
            at = tf.reshape(place, [1])[:number]
            written = [
                self._counted.set_at(at, tf.reshape(batch, [1])[:number]),
                self._counted_in.set_at(at, tf.reshape(current, [1])[:number]),
                self._state.add(tf.stack([0, number])),
                *after(current, so_far + number, adds),
            ]
        with tf.control_dependencies(written):
            unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([unlocked]):
            return tf.identity(adds), tf.where(adds, current, counted_in)

    def advance(self, gradients: tf.Tensor) -> None:
        """Begins the next round, and lets the steps enter that wait for it.

        Args:
            gradients: The number of those that the round had.
        """
        with tf.device(self.device):
            count = tf.cast(tf.identity(gradients), tf.int64)
            with tf.control_dependencies([self._state.add(tf.stack([1, -count]))]):
                self._wake(self._state.read()[0])

    def let_all_pass(self, passing: tf.Tensor) -> None:
        """Ends all waits, if `passing` is 1, until it is called with 0."""
        with tf.device(self.device):
            change = tf.reshape(passing, [1]) - self._is_open.read()
            with tf.control_dependencies([self._is_open.add(change)]):
                self._wake(None)

    def state(self) -> tf.Tensor:
        """Returns the number of the round, and of the gradients that it has so far."""
        return self._state.read()

    def _woken(self, number: tf.Tensor) -> list[tf.Tensor]:
        """Waits to be woken for a round, at most `_QUEUES` - 1 after the current one."""
        woken = [
            tf.raw_ops.QueueDequeueManyV2(
                handle=queue.handle,
                n=tf.cast(number % _QUEUES == i, tf.int32),
                component_types=[tf.int32],
            )
            for i, queue in enumerate(self._wake_ups)
        ]
        tensors: list[tf.Tensor] = tf.nest.flatten(woken)
        return tensors

    def _wake(self, begun: tf.Tensor | None, is_due: Any = True) -> list[tf.Operation]:
        """Wakes the steps that wait for the round that has begun, or all."""
        woken = []
        for i, queue in enumerate(self._wake_ups):
            # Elements that are there already suffice, and must not become ever more.
            missing = self._num_workers - tf.raw_ops.QueueSizeV2(handle=queue.handle)
            count = tf.where(is_due, tf.maximum(missing, 0), 0)
            if begun is not None:
                count = tf.where(begun % _QUEUES == i, count, 0)
            woken.append(
                tf.raw_ops.QueueEnqueueManyV2(
                    handle=queue.handle, components=[tf.zeros([count], tf.int32)]
                )
            )
        return woken
