"""The cost of background checkpoints: a model of 500 MB, one every 30 s.

    python benchmarks/checkpoint_cost.py --json=benchmarks/measured/checkpoint_cost.json

In one `fit` on 2 ps and 2 workers, stretches of time with and without a checkpoint take
turns. The checkpoint starts in the middle of its stretch, and ends in the other half. All
processors are busy: what a checkpoint uses, training lacks.
"""

import json
import math
import os
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
WARM_UP = 1000  # steps
TARGET = 0.95


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("repeats", 10, "Pairs of stretches.", lower_bound=1)
    flags.DEFINE_float("interval", 30.0, "Between two checkpoints, in seconds.")
    flags.DEFINE_string("json", None, "Write every stretch to this file.")


def turns(repeats: int) -> list[tuple[int, bool]]:
    """The repeat of each stretch, and whether it has a checkpoint.

    >>> turns(2)
    [(0, True), (0, False), (1, False), (1, True)]
    """
    return [
        (repeat, checkpoint)
        for repeat in range(repeats)
        for checkpoint in ((False, True) if repeat % 2 else (True, False))
    ]


def measure(servers: launch.Servers, directory: Path) -> list[dict[str, Any]]:
    """Trains as the chief, and returns the rate of each stretch."""
    os.environ["TF_CONFIG"] = servers.tf_config.to_json()
    import keras
    import numpy as np

    import tfdist
    from tfdist.checkpoint.store import numbers

    class Clock(keras.callbacks.Callback):
        """Starts checkpoints, and measures the rate of steps in each stretch."""

        def __init__(self) -> None:
            super().__init__()
            self.stretches: list[dict[str, Any]] = []
            self._turns = iter(turns(flags.FLAGS.repeats))
            self._begin, self._turn, self._is_due = math.inf, (0, False), False

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            now, half = time.monotonic(), flags.FLAGS.interval / 2
            strategy.checkpoint_interval = math.inf
            if batch == WARM_UP:
                self._next(batch, now)
            elif now >= self._begin + 2 * half:
                self._note(batch, now)
                self._next(batch, now)
            elif self._is_due and now >= self._begin + half:
                self._is_due = False
                strategy.checkpoint_interval = 0.0

        def _note(self, batch: int, now: float) -> None:
            repeat, checkpoint = self._turn
            stretch = {
                "repeat": repeat,
                "checkpoint": checkpoint,
                "rate": (batch - self._batch) / (now - self._begin),
                "written": self._count() - self._written,
            }
            self.stretches.append(stretch)
            print(stretch, flush=True)

        def _next(self, batch: int, now: float) -> None:
            turn = next(self._turns, None)
            if turn is None:
                self.model.stop_training = True
                self._begin = math.inf
                return
            self._turn, self._is_due = turn, turn[1]
            self._begin, self._batch, self._written = now, batch, self._count()

        def _count(self) -> int:
            names = (each.name for each in directory.glob("fit-*/*"))
            # They are counted from 0.
            return 1 + max(numbers(names), default=-1)

    strategy = tfdist.ParameterServerStrategy(
        partitioner=tfdist.FixedShardsPartitioner(2),
        checkpoint_dir=directory,
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

    clock = Clock()
    model.fit(x, y, batch_size=BATCH, callbacks=[clock], verbose=0)
    return clock.stretches


def ratios(stretches: list[dict[str, Any]]) -> list[float]:
    """The rate with a checkpoint over that without, of each repeat."""
    rates = {(each["repeat"], each["checkpoint"]): each["rate"] for each in stretches}
    repeats = sorted({repeat for repeat, _ in rates})
    return [rates[repeat, True] / rates[repeat, False] for repeat in repeats]


def sentence(measured: dict[str, Any]) -> str:
    """Returns the sentence in docs/recovery.md."""
    paired = ratios(measured["stretches"])
    return (
        f"With a checkpoint of {measured['bytes'] / 1e6:.0f} MB every "
        f"{measured['interval']:g} s, a training that leaves no processor idle kept "
        f"{statistics.median(paired):.1%} of its steps per second (median of "
        f"{len(paired)} pairs, {min(paired):.1%} to {max(paired):.1%})."
    )


def main(_: list[str]) -> None:
    """Measures, prints and writes."""
    with (
        tempfile.TemporaryDirectory() as directory,
        launch.servers(2, 2, log_dir=str(Path(directory, "logs"))) as servers,
    ):
        stretches = measure(servers, Path(directory, "checkpoints"))
    measured = {
        "environment": environment(),
        "bytes": ROWS * WIDTH * 4,
        "interval": flags.FLAGS.interval,
        "stretches": stretches,
    }
    print(sentence(measured))
    verdict = statistics.median(ratios(stretches)) >= TARGET
    print(f"target >= {TARGET:.0%}: {'reached' if verdict else 'MISSED'}")
    if flags.FLAGS.json:
        Path(flags.FLAGS.json).write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    define_flags()
    app.run(main)
