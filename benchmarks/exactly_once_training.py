"""The training that benchmarks/exactly_once.py runs and disturbs: it counts its examples.

Each example is a number, and the model's only state that changes says how often each
number was seen. It is one of the model's weights, so that a checkpoint has it.
"""

import json
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from exactly_once import MOST_STEPS

import tfdist
from launch.chaos import report_result, report_step
from tfdist.data import from_source

PAUSE = 0.1  # seconds between two reports


class Seen(keras.layers.Layer):
    """Counts the numbers that pass through it.

    Args:
        examples: How many numbers there are.
    """

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.times = self.add_weight(
            shape=(examples,), dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, numbers: Any) -> Any:
        """Counts a batch, and returns it as floating point."""
        ones = tf.ones_like(numbers[:, 0], tf.int32)
        self.times.value.scatter_add(tf.IndexedSlices(ones, numbers[:, 0]))
        return tf.cast(numbers, tf.float32)


class Report(keras.callbacks.Callback):
    """Reports the steps that have finished, in a thread of its own.

    A callback that sees each batch would make messages of one step.

    Args:
        in_flight: Of the strategy: it knows how many steps have finished.
    """

    def __init__(self, in_flight: Any) -> None:
        super().__init__()
        self._in_flight = in_flight
        self._thread: threading.Thread | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins, at the step of the checkpoint that `fit` has resumed from."""
        if self._thread is None:
            # Not an attribute, which a `fit` that resumes would take from the checkpoint.
            begun = int(self.model.optimizer.iterations)
            self._thread = threading.Thread(
                target=self._report, args=(begun,), daemon=True
            )
            self._thread.start()

    def _report(self, begun: int) -> None:
        while True:
            report_step(begun + self._in_flight.steps_finished)
            time.sleep(PAUSE)


def define_flags() -> None:
    """Defines the command-line flags."""
    for name in ("examples", "epochs", "batch"):
        flags.DEFINE_integer(name, None, "As of the benchmark.", required=True)
    flags.DEFINE_float("checkpoint_interval", 2.0, "Seconds between checkpoints.")
    flags.DEFINE_string("numbers", None, "Their file, of numpy.save.", required=True)
    flags.DEFINE_string("result", None, "Where to write what was seen.", required=True)


def main(argv: list[str]) -> None:
    """Trains, and writes how many numbers were seen how often."""
    given = flags.FLAGS
    strategy = tfdist.ParameterServerStrategy(
        checkpoint_interval=given.checkpoint_interval
    )
    source = from_source(given.numbers, shuffle=True, seed=1)
    data = source.map(lambda number: (number[None], 0.0)).batch(given.batch)
    with strategy.scope():
        seen = Seen(given.examples)
        model = keras.Sequential(
            [keras.Input((1,), dtype="int64"), seen, keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(
        data,
        epochs=given.epochs,
        callbacks=[Report(strategy.in_flight)],
        verbose=0,
    )
    steps = given.epochs * -(-given.examples // given.batch)
    report_result(int(model.optimizer.iterations), steps, MOST_STEPS)
    times = np.bincount(seen.times.numpy()).tolist()
    Path(given.result).write_text(json.dumps(times))


if __name__ == "__main__":
    define_flags()
    app.run(main)
