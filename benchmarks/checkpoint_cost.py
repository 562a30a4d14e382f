"""What checkpoints in the background cost a training: a model of 500 MB, every 30 s.

    python benchmarks/checkpoint_cost.py --json=benchmarks/measured/checkpoint_cost.json

On one cluster of 2 ps and 2 workers, runs of `fit` with and without checkpoints take
turns. A run is timed from half an interval before a checkpoint begins to half an interval
before another one does, so that it has the whole cost of as many as it is long. Every
processor of the machine is busy: whatever a checkpoint takes, training does without.
"""

import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import app, flags
from chaos_report import environment

import launch

ROWS, WIDTH, BATCH = 976_000, 128, 64  # 500 MB of float32
MOST_STEPS = 200_000
TARGET = 0.95


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("repeats", 5, "Pairs of runs.", lower_bound=1)
    flags.DEFINE_float("interval", 30.0, "Between two checkpoints, in seconds.")
    flags.DEFINE_integer("checkpoints", 1, "That a run is timed for.", lower_bound=1)
    flags.DEFINE_string("json", None, "Write every run to this file.")


def window(interval: float, checkpoints: int) -> tuple[float, float]:
    """When to begin and to end timing, in seconds since training began.

    >>> window(30.0, 2)
    (15.0, 75.0)
    """
    return interval / 2, interval / 2 + interval * checkpoints


def measure(servers: launch.Servers, kept: str) -> list[dict[str, Any]]:
    """Is the chief: trains again and again, and returns what each run was like."""
    os.environ["TF_CONFIG"] = servers.tf_config.to_json()
    import keras
    import numpy as np

    import tfdist
    from tfdist.checkpoint.store import numbers

    class Clock(keras.callbacks.Callback):
        """Ends training after its window, and tells the rate of steps within it."""

        def on_train_begin(self, logs: Any = None) -> None:
            self._began = time.monotonic()
            self._first: tuple[int, float] | None = None

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            now = time.monotonic()
            begin, end = window(flags.FLAGS.interval, flags.FLAGS.checkpoints)
            if self._first is None and now - self._began >= begin:
                self._first = batch, now
            if self._first is not None and now - self._began >= end:
                step, at = self._first
                self.rate = (batch - step) / (now - at)
                self.model.stop_training = True

    strategy = tfdist.ParameterServerStrategy(
        partitioner=tfdist.FixedShardsPartitioner(2),
        checkpoint_interval=flags.FLAGS.interval,
    )
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((1,), dtype="int64"),
                tfdist.Embedding(ROWS, WIDTH),
                keras.layers.Flatten(),
                keras.layers.Dense(64, "relu"),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).integers(0, ROWS, size=(BATCH * MOST_STEPS, 1))
    y = np.ones((len(x), 1), "float32")

    def run(directory: Path | None) -> dict[str, Any]:
        strategy.checkpoint_dir = directory
        model.fit(x, y, batch_size=BATCH, callbacks=[clock := Clock()], verbose=0)
        names = [each.name for each in directory.glob("fit-*/*")] if directory else []
        # They are counted from 0, and the last one is that of the end.
        return {"rate": clock.rate, "written": max(numbers(names), default=0)}

    runs = []
    for repeat in range(flags.FLAGS.repeats):
        for checkpoints in (False, True) if repeat % 2 else (True, False):
            directory = Path(kept, str(repeat)) if checkpoints else None
            found = run(directory)
            runs.append({"repeat": repeat, "checkpoints": checkpoints, **found})
            print(runs[-1], flush=True)
            if directory:
                shutil.rmtree(directory)
    return runs


def ratios(runs: list[dict[str, Any]]) -> list[float]:
    """The rate with checkpoints over that without, of each repeat."""
    rates = {(each["repeat"], each["checkpoints"]): each["rate"] for each in runs}
    repeats = sorted({repeat for repeat, _ in rates})
    return [rates[repeat, True] / rates[repeat, False] for repeat in repeats]


def sentence(measured: dict[str, Any]) -> str:
    """What docs/recovery.md says of it."""
    paired = ratios(measured["runs"])
    return (
        f"With a checkpoint of {measured['bytes'] / 1e6:.0f} MB every "
        f"{measured['interval']:g} s, a training that leaves no processor idle kept "
        f"{statistics.median(paired):.1%} of its steps a second (median of "
        f"{len(paired)} pairs, {min(paired):.1%} to {max(paired):.1%})."
    )


def main(_: list[str]) -> None:
    """Measures, prints and writes."""
    with (
        tempfile.TemporaryDirectory() as directory,
        launch.servers(2, 2, log_dir=str(Path(directory, "logs"))) as servers,
    ):
        runs = measure(servers, directory)
    measured = {
        "environment": environment(),
        "bytes": ROWS * WIDTH * 4,
        "interval": flags.FLAGS.interval,
        "runs": runs,
    }
    print(sentence(measured))
    verdict = statistics.median(ratios(runs)) >= TARGET
    print(f"target >= {TARGET:.0%}: {'reached' if verdict else 'MISSED'}")
    if flags.FLAGS.json:
        Path(flags.FLAGS.json).write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    define_flags()
    app.run(main)
