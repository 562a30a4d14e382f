"""The training that benchmarks/elastic.py runs: it counts its examples, and sleeps.

A step sleeps on its worker, so that more workers do more steps a second also where they
share two cores. That is an operation with a state of its own, and so each message has one
step.
"""

import json
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from exactly_once_training import Report, Seen

import tfdist
from tfdist.data import from_source


class Sleep(keras.layers.Layer):
    """Passes a batch on after a while.

    Args:
        seconds: How long it takes.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        # It is asked for its only element, and for whether there are more.
        self._microseconds = int(1e6 * seconds / 2)

    def call(self, batch: Any) -> Any:
        """Sleeps."""
        one = tf.data.Dataset.from_tensors(batch)
        late = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(one),
            sleep_microseconds=tf.constant(self._microseconds, tf.int64),
            output_types=[batch.dtype],
            output_shapes=[batch.shape],
        )
        spec = tf.TensorSpec(batch.shape, batch.dtype)
        return tf.data.experimental.from_variant(late, spec).get_single_element()


class Until(keras.callbacks.Callback):
    """Ends training with the epoch in which a file has appeared.

    Args:
        path: Of the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Looks for it."""
        self.model.stop_training = os.path.exists(self._path)


def define_flags() -> None:
    """Defines the command-line flags."""
    for name in ("examples", "batch"):
        flags.DEFINE_integer(name, None, "As of the benchmark.", required=True)
    flags.DEFINE_float("step_seconds", None, "How long a step sleeps.", required=True)
    flags.DEFINE_string("numbers", None, "Their file, of numpy.save.", required=True)
    flags.DEFINE_string("enough", None, "The file that ends training.", required=True)
    flags.DEFINE_string("result", None, "Where to write what was seen.", required=True)


def main(argv: list[str]) -> None:
    """Trains, and writes how many numbers were seen how often."""
    given = flags.FLAGS
    strategy = tfdist.ParameterServerStrategy()
    source = from_source(given.numbers, shuffle=True, seed=1)
    data = source.map(lambda number: (number[None], 0.0)).batch(given.batch)
    with strategy.scope():
        seen = Seen(given.examples)
        layers = [seen, Sleep(given.step_seconds), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,), dtype="int64"), *layers])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    history = model.fit(
        data,
        epochs=10**6,
        callbacks=[Report(strategy.in_flight), Until(given.enough)],
        verbose=0,
    )
    result = {
        "epochs": len(history.epoch),
        "times": np.bincount(seen.times.numpy()).tolist(),
        "steps": int(model.optimizer.iterations),
    }
    Path(given.result).write_text(json.dumps(result))


if __name__ == "__main__":
    define_flags()
    app.run(main)
