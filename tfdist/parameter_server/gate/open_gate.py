"""A gate at which nobody waits: it counts only."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.parameter_server.gate.gate import Turn
from tfdist.parameter_server.gate.meter import Meter


class OpenGate:
    """Counts how stale asynchronous steps are, by a number on a ps.

    A step reads the number with its first variable there, and adds to it after its last
    write there. What has been added in between, others have written.

    Args:
        meter: Counts the staleness of each step, on the ps.
    """

    slot_specs: ClassVar[Sequence[tf.TensorSpec]] = (tf.TensorSpec([], tf.resource),)

    def __init__(self, meter: Meter) -> None:
        self.device = meter.device
        self._meter = meter
        with tf.device(self.device):
            self._written = tf.Variable(0, trainable=False, dtype=tf.int64)

    def slot(self) -> list[tf.Tensor]:
        """Returns the worker's number."""
        return self._meter.slot()

    def around(
        self, step: Callable[[], Any], slot: Sequence[tf.Tensor], size: int
    ) -> tuple[Any, Turn]:
        """Runs a step with the operations that count it: see `Gate`."""
        (variable,) = slot
        with tf.name_scope("turn") as scope, tf.device(self.device):
            before = self._written.read_value()
            started = tf.timestamp()
        result = step()
        pulled, pushed = self._meter.times_on_worker(scope)
        with tf.name_scope(scope), tf.device(self.device):
            with tf.control_dependencies([before, started]):
                has_written = tf.no_op()
            with tf.control_dependencies([has_written]):
                after = self._written.assign_add(size)
                ended = tf.timestamp()
            worker = self._meter.worker(variable)
            staleness = tf.identity(after) - size - before
            ones = tf.fill([1], tf.cast(size, tf.int64))
            self._meter.add_staleness(worker[tf.newaxis], staleness[tf.newaxis], ones)
            self._meter.add_seconds(worker, tf.zeros([], tf.float64), ended - started)
            if pulled is not None and pushed is not None:
                times = started, started, pulled, pushed, ended, ended, ended
                self._meter.record(worker, times)
        ops = before.op, None, None, has_written
        return result, Turn(*ops, scope, pulled, pushed)

    def reset(self) -> None:
        """Does nothing: the number needs no steps to end."""

    def leave(self, worker: int) -> None:
        """Does nothing: nobody waits for a step."""
