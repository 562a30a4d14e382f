"""Gate on one ps that keeps the staleness of steps within a bound."""

import contextlib
import threading
import time

import tensorflow as tf

from tfdist._support.types import After
from tfdist.consistency.policy import Phase
from tfdist.parameter_server.gate import decisions
from tfdist.parameter_server.gate.decisions import IDLE, GateSlots
from tfdist.parameter_server.gate.meter import Meter
from tfdist.parameter_server.gate.waiting_gate import TAKEN, WaitingGate

# The key is lost if nobody has turned it for so long, in seconds.
_LOST_SECONDS = 5.0
_POLL_SECONDS = 0.25


class BoundedGate(WaitingGate):
    """Keeps a bound on staleness: the steps of all workers, in a variable on one ps.

    A *key*, the element of a queue of one, lets one event at a time change the variable.
    """

    def __init__(self, meter: Meter, num_workers: int, bound: int) -> None:
        super().__init__(meter, num_workers)
        self._bound = bound
        with tf.device(self.device):
            self._key = tf.queue.FIFOQueue(1, [tf.bool], [[]], shared_name=self.name)
            self._slots = tf.Variable(self._empty(), trainable=False, name="turns")
        # Traced and run while all tasks answer: each of them is told of a new function.
        remove = tf.function(self._remove, autograph=False)
        self._leave = remove.get_concrete_function(tf.TensorSpec([], tf.int64))
        self.reset()
        self._leave(tf.constant(0, tf.int64))

    def _empty(self) -> tf.Tensor:
        return tf.zeros([2 + 3 * self._num_workers], tf.int64)

    def reset(self) -> None:
        """Forgets all steps. Call it while none is in flight."""
        self.clear_lines()
        with tf.device(self.device):
            self._key.dequeue_many(self._key.size())
            self._slots.assign(self._empty())
            self._key.enqueue(True)

    def leave(self, worker: int) -> None:
        """Takes a lost worker's step out, so that nobody waits for it."""

        def remove() -> None:
            # If the ps is lost too, the polls below say so.
            with contextlib.suppress(tf.errors.OpError):
                self._leave(tf.constant(worker, tf.int64))

        # In a thread: if the step was cut off with the key, this one waits until it is
        # replaced.
        removal = threading.Thread(target=remove, daemon=True)
        removal.start()
        seen, since = self._seen(), time.monotonic()
        while removal.is_alive():
            removal.join(_POLL_SECONDS)
            if (now := self._seen()) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > _LOST_SECONDS:
                # The step was cut off between taking the key and putting it back.
                since = time.monotonic()
                with tf.device(self.device):
                    self._key.enqueue(True)

    def _seen(self) -> bytes:
        """Returns the state that every event changes."""
        state: bytes = self._slots.numpy().tobytes()
        return state

    def arrive(self, worker: tf.Tensor, after: After) -> tuple[tf.Tensor, tf.Operation]:
        """Adds the event that a step wants to start."""
        return self._event(worker, Phase.STARTING, None, after)

    def computed(
        self, worker: tf.Tensor, ticket: tf.Tensor, after: After
    ) -> tf.Operation:
        """Adds the event that a step wants to write."""
        current, event = self._event(worker, Phase.READY, ticket, after)
        with tf.control_dependencies([event]):
            return self.check(current, ticket)

    def finished(
        self, worker: tf.Tensor, ticket: tf.Tensor, after: After
    ) -> tf.Operation:
        """Adds the event that a step has written."""
        return self._event(worker, IDLE, ticket, after)[1]

    def _event(
        self,
        worker: tf.Tensor,
        phase: int,
        ticket: tf.Tensor | None,
        after: After,
    ) -> tuple[tf.Tensor, tf.Operation]:
        """Records a phase, lets those continue that may; returns the ticket and the last op."""
        with tf.control_dependencies(after):
            key = self._key.dequeue()
        with tf.control_dependencies([key]):
            slots = self._read()
        slots = decisions.at(slots, worker, phase, ticket)
        slots, goes_on, writes, staleness = decisions.release(slots, self._bound)
        workers = tf.range(self._num_workers, dtype=tf.int64)
        # A line gets one ticket or none: a tensor of length 1 or 0, and no branch per
        # worker.
        sizes = tf.split(tf.cast(goes_on, tf.int32), self._num_workers)
        tickets = tf.unstack(slots.ticket)
        calls = [
            self._meter.add_staleness(workers, staleness, writes),
            *(
                line.enqueue_many(tf.fill(size, called))
                for line, size, called in zip(self.lines, sizes, tickets, strict=True)
            ),
        ]
        # In this order, a step that is cut off may release others twice, but never not.
        with tf.control_dependencies(calls):
            written = self._write(slots)
        with tf.control_dependencies([written]):
            return tf.gather(slots.ticket, worker), self._key.enqueue(key)

    def _remove(self, worker: tf.Tensor) -> None:
        """Takes a worker's step out, and ends it if it waits."""
        with tf.device(self.device):
            key = self._key.dequeue()
            with tf.control_dependencies([key]):
                slots = self._read()
            phase = tf.gather(slots.phase, worker)
            waits = tf.equal(phase, Phase.STARTING) | tf.equal(phase, Phase.READY)
            is_it = tf.equal(tf.range(self._num_workers, dtype=tf.int64), worker)
            ended = [
                line.enqueue_many(tf.boolean_mask([tf.constant(TAKEN, tf.int64)], here))
                for line, here in zip(
                    self.lines, tf.split(is_it & waits, self._num_workers), strict=True
                )
            ]
            slots = slots._replace(
                ticket=tf.where(is_it, tf.constant(TAKEN, tf.int64), slots.ticket)
            )
            with tf.control_dependencies([*ended, self._write(slots)]):
                put_back = self._key.enqueue(key)
            # As if it had written, so that those continue that have waited for it.
            taken = tf.constant(TAKEN, tf.int64)
            self._event(worker, IDLE, taken, [put_back])

    def _read(self) -> GateSlots:
        sizes = [2, *[self._num_workers] * 3]
        return GateSlots(*tf.split(tf.identity(self._slots.read_value()), sizes))

    def _write(self, slots: GateSlots) -> tf.Operation:
        return self._slots.assign(tf.concat(slots, axis=0), read_value=False)
