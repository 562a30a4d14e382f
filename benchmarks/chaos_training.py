"""The small training that benchmarks/chaos.py runs and disturbs.

It learns a linear function without noise, so its final weights are known. Steps mostly
sleep, so that faults have time to strike.
"""

import sys
import time
from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdist
from launch.chaos import report_result, report_step

BATCH, FEATURES = 16, 8
TOLERANCE = 0.05


class Report(keras.callbacks.Callback):
    """Sleeps before each step, and reports the steps that have finished.

    Args:
        strategy: Knows how many steps are in flight.
        steps: Steps per epoch.
        pace: The sleep, in seconds.

    Attributes:
        ahead: The steps that a checkpoint had beyond the position from which `fit`
            resumed; None before the first step.
    """

    def __init__(self, strategy: Any, steps: int, pace: float) -> None:
        super().__init__()
        self._in_flight, self._steps, self._pace = strategy.in_flight, steps, pace
        self._epoch = 0
        self.ahead: int | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Reports the steps that are not in flight any more."""
        begun = self._epoch * self._steps + batch
        if self.ahead is None:
            self.ahead = int(self.model.optimizer.iterations) - begun
        time.sleep(self._pace)
        if self._in_flight.finished:
            report_step(max(begun - self._in_flight.limit, 0))


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("epochs", 4, "How often the data is read.", lower_bound=1)
    flags.DEFINE_integer("steps", 100, "Steps an epoch.", lower_bound=1)
    flags.DEFINE_float("pace", 0.02, "Wait before a step, in seconds.")
    flags.DEFINE_float("checkpoint_interval", 1.0, "Seconds between checkpoints.")


def main(argv: list[str]) -> None:
    """Trains, and checks the weights."""
    epochs, steps = flags.FLAGS.epochs, flags.FLAGS.steps
    random = np.random.default_rng(0)
    x = random.normal(size=(steps * BATCH, FEATURES)).astype("float32")
    truth = np.arange(FEATURES, dtype="float32")
    strategy = tfdist.ParameterServerStrategy(
        checkpoint_interval=flags.FLAGS.checkpoint_interval
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    report = Report(strategy, steps, flags.FLAGS.pace)
    model.fit(
        *(x, x @ truth),
        batch_size=BATCH,
        epochs=epochs,
        callbacks=[report],
        verbose=0,
    )
    done, expected = int(model.optimizer.iterations), epochs * steps
    # A fit that had ended has no step any more.
    ahead = done - expected if report.ahead is None else report.ahead
    report_result(done, expected, strategy.in_flight.limit, ahead)
    kernel, _ = model.get_weights()
    error = float(np.abs(kernel[:, 0] - truth).max())
    print(f"the weights are wrong by {error:.2g} at most", flush=True)
    if not error < TOLERANCE:
        sys.exit(f"that is more than {TOLERANCE}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
