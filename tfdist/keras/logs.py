"""The logs that callbacks on the chief see while steps run on the workers."""

import math
import time
from typing import NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdist._support.types import Logs, Nest

# The maximum age of the metrics that a callback sees within an epoch, in seconds.
# Reading them after every step would cost the chief a message per metric and step.
MAX_AGE = 0.2


class MetricState(Protocol):
    """The state of a model's metrics while steps write them, for `StepLogs`."""

    def add(self) -> None:
        """Adds the step's changes of the metrics, at the end of a traced step."""

    def whole(self, logs: Logs) -> "WholeLogs":
        """Returns the logs of such a step, as if it had read the metrics at once."""

    def begin(self, is_read: bool) -> bool:
        """Begins anew if the metrics were reset; returns whether it has."""

    def results(self) -> Logs | None:
        """Returns the results after some whole steps since then, or None without one."""


class WholeLogs(NamedTuple):
    """The logs of a step.

    Attributes:
        logs: The logs, nested.
        from_metrics: For each leaf, whether it is computed from metrics that were read
            after `steps` whole steps.
        steps: That number, a scalar; 0 if there is no such leaf.
    """

    logs: Logs
    from_metrics: list[bool]
    steps: tf.Tensor | float


class StepLogs:
    """The logs of a model's steps, as a callback sees them.

    If a step returns only the results of the model's metrics, as Keras's own steps do,
    the worker does not send them: their variables are on the ps, and the chief reads
    them there a few times per second. Any other logs come from the workers with every
    step.
    """

    def __init__(self, model: keras.Model, state: MetricState) -> None:
        self._model = model
        self._state = state
        self._packed: PackedLogs | None = None
        self._from_metrics: list[bool] = []
        self._newest = -1.0
        self._latest: Logs = {}
        self._read_at = -math.inf

    @property
    def are_unknown(self) -> bool:
        """True if no step of the epoch has returned logs yet."""
        return not self._latest

    def pack(self, logs: Logs) -> tf.Tensor | None:
        """Returns, within a step, the logs that the worker must send; may be empty."""
        if not isinstance(logs, dict):
            raise TypeError(
                "train_step and test_step must return a dict of logs, for example "
                f"{{'loss': loss}}; received {logs!r}"
            )
        if set(logs) == set(self._model.get_metrics_result()):
            self._state.add()
            return tf.zeros([0], tf.float64)
        self._packed = PackedLogs()
        whole, self._from_metrics, steps = self._state.whole(logs)
        numbers = self._packed.pack(whole)
        return tf.concat([[tf.cast(steps, numbers.dtype)], numbers], axis=0)

    def begin(self, are_read: bool) -> None:
        """Forgets the logs of before, if the metrics were reset.

        `are_read` is whether a callback sees the logs of the steps that follow.
        """
        if self._state.begin(are_read or self._packed is not None):
            self.forget()

    def forget(self) -> None:
        """Forgets the logs of before, as at the beginning of an epoch."""
        self._latest.clear()
        self._newest = -1.0
        self._read_at = -math.inf

    def take(self, vector: tf.Tensor, is_newest: bool) -> None:
        """Takes the logs that a worker has sent.

        A step that was sent before others may have read the metrics after them, so values
        that are computed from metrics count by the steps that they cover.

        Args:
            vector: What `pack` returned.
            is_newest: Whether no step that was sent later has ended.
        """
        if self._packed is None:
            return
        steps, *_ = numbers = vector.numpy()
        taken = self._packed.unpack(numbers[1:])
        # Another structure of batches may have other keys.
        if self._latest.keys() == taken.keys():
            has_newest_metrics = steps > self._newest
            leaves = zip(
                self._from_metrics,
                tf.nest.flatten(self._latest),
                tf.nest.flatten(taken),
                strict=True,
            )
            shown = [
                new if (has_newest_metrics if is_metric else is_newest) else last
                for is_metric, last, new in leaves
            ]
            taken = tf.nest.pack_sequence_as(taken, shown)
        self._newest = max(self._newest, steps)
        self._latest.update(taken)

    def latest(self) -> Logs:
        """Returns logs at most `MAX_AGE` old, in the same dict each time.

        Keras keeps the dict of the last step, so updating it keeps that current.
        """
        if self._packed is None and time.monotonic() - self._read_at > MAX_AGE:
            self._latest.update(self._state.results() or {})
            if self._latest:
                self._read_at = time.monotonic()
        return self._latest

    def known(self) -> Logs:
        """Returns the logs as they were read last, in the same dict as `latest`."""
        return self._latest if self._latest else self.now()

    def now(self) -> Logs:
        """Returns the logs as of now. Call it while no step writes the metrics."""
        if self._packed is None:
            self._latest.update(self._model.get_metrics_result())
            self._read_at = time.monotonic()
        return self._latest


class PackedLogs:
    """The logs of a step as one vector, which crosses the network in one message."""

    def __init__(self) -> None:
        self._structure: Nest = None
        self._shapes: list[tuple[int, ...]] = []

    def pack(self, logs: Logs) -> tf.Tensor:
        """Returns a float64 vector of all the values in the logs."""
        values = [tf.convert_to_tensor(value) for value in tf.nest.flatten(logs)]
        for value in values:
            check_is_a_log(value)
        self._structure = tf.nest.map_structure(lambda _: None, logs)
        self._shapes = [tuple(value.shape) for value in values]
        # float64 holds float32 results and int32 counts alike, without rounding.
        flat = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values]
        return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float64)

    def unpack(self, vector: np.ndarray) -> Nest:
        """Returns the logs that `pack` packed into the vector."""
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        parts = np.split(vector, np.cumsum(sizes)[:-1]) if sizes else []
        values = [
            part.reshape(shape)[()]
            for part, shape in zip(parts, self._shapes, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._structure, values)


def check_is_a_log(value: tf.Tensor) -> None:
    """Checks that a value in the logs of a step is a number of a fixed shape."""
    is_number = value.dtype.is_floating or value.dtype.is_integer
    if not (is_number or value.dtype.is_bool):
        raise ValueError(
            "train_step and test_step must return numbers in their logs; received a "
            f"{value.dtype.name}: {value}"
        )
    if not value.shape.is_fully_defined():
        raise ValueError(
            "train_step and test_step must return logs of a fixed shape; received the "
            f"shape {value.shape}: {value}. Reduce it over the batch first, for example "
            "with tf.reduce_mean"
        )
