"""How long the last steps of each worker took, measured on a ps."""

from typing import Any

import numpy as np
import tensorflow as tf

_KEPT = 64
"""How many steps of each worker are kept: an estimate should follow what changes."""


class Durations:
    """The times of steps from when they join a round until their gradient arrives.

    Args:
        device: The device of the ps.
        num_workers: The number of workers.
    """

    def __init__(self, device: str, num_workers: int) -> None:
        self.device = device
        self._begun: Any = None
        with tf.init_scope(), tf.device(device):
            self._seconds = tf.Variable(
                np.zeros([num_workers, _KEPT]), trainable=False, dtype=tf.float64
            )
            self._counts = tf.Variable(
                np.zeros([num_workers], np.int64), trainable=False
            )

    def begin(self, after: tf.Tensor) -> None:
        """Takes the time after something is there: the step being traced begins."""
        with tf.device(self.device), tf.control_dependencies([after]):
            self._begun = tf.timestamp()

    def end(self, worker: tf.Tensor, after: tf.Tensor) -> None:
        """Adds a step's time until something is there."""
        with tf.device(self.device):
            with tf.control_dependencies([after]):
                seconds = tf.timestamp() - self._begun
            counted = tf.gather(self._counts.read_value(), worker)
            with tf.control_dependencies([counted]):
                tf.raw_ops.ResourceScatterNdUpdate(
                    ref=self._seconds.handle,
                    indices=[tf.stack([worker, counted % _KEPT])],
                    updates=[seconds],
                )
                tf.raw_ops.ResourceScatterNdAdd(
                    ref=self._counts.handle,
                    indices=[[worker]],
                    updates=tf.constant([1], tf.int64),
                )

    def recent(self) -> list[list[float]]:
        """Returns the times of the last steps of each worker, in seconds."""
        counts = np.minimum(self._counts.numpy(), _KEPT)
        both = zip(self._seconds.numpy(), counts, strict=True)
        return [list(each[:count]) for each, count in both]
