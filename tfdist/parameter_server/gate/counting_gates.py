"""Gates at which nobody waits: they count steps, and the steps of rounds.

`reset` and `leave` do nothing, because an open gate only counts, and rounds are begun
anew, and know of lost workers themselves.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._support.types import After, Nest
from tfdist.parameter_server.gate.gate import Gate, Turn
from tfdist.parameter_server.gate.meter import Meter


class OpenGate(Gate):
    """Counts how stale asynchronous steps are, by a number on a ps.

    A step reads the number with its first variable there, and adds to it after its last
    write there. Others have written everything that was added in between.
    """

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter)
        with tf.device(self.device):
            self._written = tf.Variable(0, trainable=False, dtype=tf.int64)

    def around(
        self, step: Callable[[], Nest], slot: Sequence[tf.Tensor], size: int
    ) -> tuple[Nest, Turn]:
        """Runs a step with the operations that count it: see `Gate`."""
        (variable,) = slot
        with tf.name_scope("turn") as scope, tf.device(self.device):
            before = self._written.read_value()
            started = tf.timestamp()
        result = step()
        pulled, pushed = self._meter.times_on_worker(scope)
        with tf.name_scope(scope), tf.device(self.device):
            # `order_reads_and_writes` adds the writes to what this waits for.
            with tf.control_dependencies([before, started]):
                has_written = tf.no_op()
            with tf.control_dependencies([has_written]):
                # The value that this addition has made: another read could have those
                # of others.
                after = self._written.assign_add(size)
                ended = tf.timestamp()
            worker = self._meter.worker(variable)
            staleness = tf.identity(after) - size - before
            ones = tf.fill([1], tf.cast(size, tf.int64))
            self._meter.add_staleness(worker[tf.newaxis], staleness[tf.newaxis], ones)
            self._meter.add_seconds(worker, tf.zeros([], tf.float64), ended - started)
            times = started, started, pulled, pushed, ended, ended, ended
            self._meter.record(worker, times)
        ops = before.op, None, None, has_written
        return result, Turn(*ops, scope, pulled, pushed)


class RoundGate(Gate):
    """Counts the steps of rounds, and how long they have waited.

    A step says meanwhile what it does: it `entered` its round, and its gradient was
    `admitted` or dropped.

    Attributes:
        scope: How the names of operations begin that belong to the step being traced
            only since it is part of a round.
        worker: The index of the worker that runs that step.
    """

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter)
        self.scope = ""
        self.worker: tf.Tensor = None
        self._entered: tf.Tensor = None
        self._is_part: tf.Tensor = None
        self._started: tf.Tensor = None
        self._arrived: tf.Tensor = None
        self._turn: tf.Tensor = None
        self._counts: tf.Tensor = None
        self._on_worker: Any = None

    def entered(self, entered: tf.Tensor, is_part: tf.Tensor) -> None:
        """Notes the entry of the traced step, and whether it is part of a round.

        It is not if it came too early, since a worker was lost; it will be sent again.
        """
        self._entered, self._is_part = entered, is_part
        self._started = self._now([entered])

    def computed(self) -> None:
        """Notes that the step being traced has computed its gradient."""
        # TensorFlow runs what tells the time in the order in which it is traced.
        self._on_worker = self._meter.times_on_worker(self.scope)

    def admitted(self, arrived: tf.Tensor, counts: tf.Tensor) -> None:
        """Notes the arrival of its gradient, and whether it counts."""
        self._arrived, self._turn = self._now([arrived]), self._now([arrived, counts])
        self._counts = counts

    def _now(self, after: After) -> tf.Tensor:
        with (
            tf.name_scope(self.scope),
            tf.device(self.device),
            tf.control_dependencies(after),
        ):
            return tf.timestamp()

    def around(
        self, step: Callable[[], Nest], slot: Sequence[tf.Tensor], size: int
    ) -> tuple[Nest, Turn]:
        """Runs a step with the operations that count it: see `Gate`."""
        # `check_combination` has refused it.
        assert size == 1, "steps that write at once cannot be in different rounds"
        (variable,) = slot
        with tf.name_scope("turn") as self.scope, tf.device(self.device):
            self.worker = self._meter.worker(variable)
            asked = self._now([self._meter.after_last_step()])
        result = step()
        pulled, pushed = self._on_worker
        with tf.name_scope(self.scope), tf.device(self.device):
            with tf.control_dependencies([self._turn]):
                has_written = tf.no_op()
            ended = self._now([has_written])
            one = tf.cast(self._counts, tf.int64)[tf.newaxis]
            worker = self.worker[tf.newaxis]
            self._meter.add_staleness(worker, tf.zeros_like(worker), one)
            part = tf.cast(self._is_part, tf.int64)
            self._meter.add_dropped(self.worker, part - one)
            waited, in_all = self._started - asked, ended - asked
            self._meter.add_seconds(self.worker, waited, in_all)
            times = asked, self._started, pulled, pushed, self._arrived
            self._meter.record(self.worker, [*times, self._turn, ended])
        ops = self._entered.op, None, None, has_written
        return result, Turn(*ops, self.scope, pulled, pushed)
