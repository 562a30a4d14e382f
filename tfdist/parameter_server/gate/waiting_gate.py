"""Base class of gates at which steps wait, with a line per worker."""

import abc
import itertools
from collections.abc import Callable, Sequence
from typing import ClassVar

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import After, Nest
from tfdist.parameter_server.gate.gate import Gate, Turn
from tfdist.parameter_server.gate.meter import Meter

TAKEN = -1
"""In place of a ticket: the step was taken from its worker."""

_numbers = itertools.count()


class WaitingGate(Gate):
    """A gate at which each step asks to start and to write, and awaits the answer.

    A step waits at its worker's *line*, a queue on the ps into which whoever lets it continue
    puts the step's ticket. Waiting for an element of a queue keeps no thread of the ps.

    Args:
        meter: Counts the staleness of each step, and how long it has waited, on the ps.
        num_workers: The number of workers.

    Attributes:
        lines: The line of each worker.
        name: How the names of its queues begin.
    """

    slot_specs: ClassVar[Sequence[tf.TensorSpec]] = (
        tf.TensorSpec([], tf.resource),
    ) * 2

    def __init__(self, meter: Meter, num_workers: int) -> None:
        super().__init__(meter)
        self.name = f"tfdist_gate_{next(_numbers)}"
        self._num_workers = num_workers
        with tf.device(self.device):
            self.lines = [
                tf.queue.FIFOQueue(
                    # Room for surplus calls: a step that was cut off may have let the
                    # same ones continue.
                    8,
                    [tf.int64],
                    [[]],
                    shared_name=f"{self.name}_{worker}",
                )
                for worker in range(num_workers)
            ]

    @abc.abstractmethod
    def arrive(self, worker: tf.Tensor, after: After) -> tuple[tf.Tensor, tf.Operation]:
        """Adds the question if a step may start; returns its ticket and last op."""

    @abc.abstractmethod
    def computed(
        self, worker: tf.Tensor, ticket: tf.Tensor, after: After
    ) -> tf.Operation:
        """Adds the question whether a step may write."""

    @abc.abstractmethod
    def finished(
        self, worker: tf.Tensor, ticket: tf.Tensor, after: After
    ) -> tf.Operation:
        """Adds the report that a step has written."""

    def check(self, called: tf.Tensor, ticket: tf.Tensor) -> tf.Operation:
        """Adds the end of a step that was called with anything but its ticket."""
        return tf.debugging.Assert(
            tf.equal(called, ticket),
            ["this step was taken from its worker and sent to another", called, ticket],
        )

    def slot(self) -> list[tf.Tensor]:
        """Returns the worker's number and its line."""
        lines = [each.queue_ref for each in self.lines]
        return [*self._meter.slot(), _tf.of_this_worker(lines)]

    def around(
        self, step: Callable[[], Nest], slot: Sequence[tf.Tensor], size: int
    ) -> tuple[Nest, Turn]:
        """Runs a step with the operations of its turn: see `Gate`."""
        assert size == 1, "steps that write at once cannot take turns"
        variable, line = slot
        with tf.name_scope("turn") as scope, tf.device(self.device):
            worker = self._meter.worker(variable)
            asked = tf.timestamp()
            with tf.control_dependencies([asked]):
                # Tickets of a step that was taken from this worker.
                left = tf.raw_ops.QueueSizeV2(handle=line)
                drained = tf.raw_ops.QueueDequeueManyV2(
                    handle=line, n=left, component_types=[tf.int64]
                )
            ticket, arrived = self.arrive(worker, drained)
            before, started = self._wait(line, ticket, arrived)
        # The operations of the turn are traced around it, and connected to it
        # afterwards.
        result = step()
        pulled, pushed = self._meter.times_on_worker(scope)
        with tf.name_scope(scope), tf.device(self.device):
            with tf.control_dependencies([started]):
                computed = tf.timestamp()
            ready = self.computed(worker, ticket, [computed])
            then, turn = self._wait(line, ticket, ready)
            with tf.control_dependencies([turn]):
                ended = tf.timestamp()
            counted = self._meter.add_seconds(worker, before + then, ended - asked)
            times = asked, started, pulled, pushed, computed, turn, ended
            recorded = self._meter.record(worker, times)
            self.finished(worker, ticket, [ended, counted, *recorded])
        ops = started.op, computed.op, turn.op, ended.op
        return result, Turn(*ops, scope, pulled, pushed)

    def _wait(
        self, line: tf.Tensor, ticket: tf.Tensor, event: tf.Operation
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Waits for this step's turn after an event; returns the seconds, and when."""
        with tf.control_dependencies([event]):
            since = tf.timestamp()
        with tf.control_dependencies([since]):
            (called,) = tf.raw_ops.QueueDequeueV2(
                handle=line, component_types=[tf.int64]
            )
        with tf.control_dependencies([self.check(called, ticket)]):
            now = tf.timestamp()
        return now - since, now

    def clear_lines(self) -> None:
        """Takes out the tickets that nobody waits for any longer."""
        with tf.device(self.device):
            for each in self.lines:
                each.dequeue_many(each.size())
