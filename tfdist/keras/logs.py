"""What the chief shows while steps run on the workers."""

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# How old the metrics may be that a callback sees within an epoch, in seconds.
MAX_AGE = 0.2


class StepLogs:
    """The logs of a model's steps, as a callback sees them.

    Where a step returns the results of the model's metrics and no more, as Keras's
    own steps do, it need not return them: their variables are on the ps, and the chief
    reads them there a few times a second. What else a step returns comes from the
    workers, with every step.

    Args:
        model: Its metrics are built.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._packed: PackedLogs | None = None
        self._latest: dict[str, Any] = {}
        self._read_at = -MAX_AGE

    @property
    def are_unknown(self) -> bool:
        """Whether no step has finished yet."""
        return not self._latest

    def pack(self, logs: Any) -> tf.Tensor | None:
        """Returns, in a step, what the worker has to send of its logs, if anything."""
        if not isinstance(logs, dict):
            raise TypeError(
                "train_step and test_step return a dict of logs, for example "
                f"{{'loss': loss}}; received {logs!r}"
            )
        if set(logs) == set(self._model.get_metrics_result()):
            return tf.zeros([0], tf.float64)
        self._packed = PackedLogs()
        return self._packed.pack(logs)

    def take(self, vector: tf.Tensor) -> None:
        """Takes what a worker has sent."""
        if self._packed is not None:
            self._latest.update(self._packed.unpack(vector.numpy()))

    def latest(self) -> dict[str, Any]:
        """Logs of a moment ago; the same dict each time, so that it stays current."""
        if self._packed is None and time.monotonic() - self._read_at > MAX_AGE:
            self.now()
        return self._latest

    def now(self) -> dict[str, Any]:
        """Logs of this very moment."""
        if self._packed is None:
            self._latest.update(self._model.get_metrics_result())
            self._read_at = time.monotonic()
        return self._latest


class PackedLogs:
    """The logs of a step as one vector, so that they cross the network at once."""

    def __init__(self) -> None:
        self._structure: Any = None
        self._shapes: list[tuple[int, ...]] = []

    def pack(self, logs: Any) -> tf.Tensor:
        """Returns a float64 vector of all the values in the logs.

        Raises:
            ValueError: If a value has no fixed shape, or is not a number.
        """
        values = [tf.convert_to_tensor(value) for value in tf.nest.flatten(logs)]
        for value in values:
            check_is_a_log(value)
        self._structure = tf.nest.map_structure(lambda _: None, logs)
        self._shapes = [tuple(value.shape) for value in values]
        flat = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values]
        return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float64)

    def unpack(self, vector: np.ndarray) -> Any:
        """Returns the logs that `pack` made the vector of."""
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        parts = np.split(vector, np.cumsum(sizes)[:-1]) if sizes else []
        values = [
            part.reshape(shape)[()]
            for part, shape in zip(parts, self._shapes, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._structure, values)


def check_is_a_log(value: tf.Tensor) -> None:
    """Checks what a step returns in its logs.

    Raises:
        ValueError: If it has no fixed shape, or is not a number.
    """
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
