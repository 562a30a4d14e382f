"""The CPU seconds of the chief per 1,000 trivial steps, by leases: 1 to 8 workers.

    python benchmarks/chief_cpu.py --json=benchmarks/measured/chief_cpu.json

A step is one small product on 64 examples, which its worker reads by a lease. `fit` takes
as many steps in a message as it chooses to; with `--each`, a callback sees each batch, so
that a message has one step. Workers that share two cores are slow, and slow steps have
shorter messages: more workers on this machine cost the chief more than on their own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from chaos_report import environment

import launch

BATCH, STEPS, EPOCHS = 64, 3000, 2
LESS = 10  # So many times fewer steps, one in each message.


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_list("workers", ["1", "2", "4", "8"], "How many.")
    flags.DEFINE_boolean("each", False, "Whether a message has one step.")
    flags.DEFINE_string("json", None, "Add every run to this file.")
    flags.DEFINE_string("numbers", "", "Internal: run as the chief, on this file.")


def chief(numbers: str, each: bool) -> dict[str, Any]:
    """Trains as the chief, twice, and measures the second time."""
    import keras

    import tfdist
    from tfdist.data import from_source

    class Batches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    strategy = tfdist.ParameterServerStrategy()
    source = from_source(numbers, shuffle=True, seed=1)
    data = source.map(lambda x: (x, x[:1])).batch(BATCH)
    data = data.take(STEPS // LESS) if each else data
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    callbacks = [Batches()] if each else []

    def train() -> None:
        model.fit(data, epochs=EPOCHS, callbacks=callbacks, verbose=0)

    train()  # The functions are traced, and messages have their size.
    steps, messages = int(model.optimizer.iterations), strategy.in_flight.submitted
    used, began = time.process_time(), time.monotonic()
    train()
    used, seconds = time.process_time() - used, time.monotonic() - began
    steps = int(model.optimizer.iterations) - steps
    return {
        "workers": strategy.num_workers,
        "each": each,
        "steps": steps,
        "messages": strategy.in_flight.submitted - messages,
        "cpu_per_1000": round(1000 * used / steps, 3),
        "steps_per_second": round(steps / seconds, 1),
    }


def measure(workers: int, each: bool) -> dict[str, Any]:
    """Measures on a new cluster."""
    with tempfile.TemporaryDirectory() as name:
        numbers = Path(name, "numbers.npy")
        np.save(numbers, np.zeros((BATCH * STEPS, 4), np.float32))
        with launch.servers(1, workers, log_dir=f"{name}/logs") as servers:
            done = subprocess.run(
                [sys.executable, __file__, f"--numbers={numbers}", f"--each={each}"],
                env={**os.environ, "TF_CONFIG": servers.tf_config.to_json()},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: list[str]) -> None:
    """Runs it for each number of workers."""
    values = flags.FLAGS
    if values.numbers:
        print(json.dumps(chief(values.numbers, values.each)))
        return
    path = Path(values.json) if values.json else None
    runs = json.loads(path.read_text())["runs"] if path and path.exists() else []
    for workers in map(int, values.workers):
        runs.append(run := measure(workers, values.each))
        if path:
            kept = {"environment": environment(), "runs": runs}
            path.write_text(json.dumps(kept, indent=1) + "\n")
        print(
            f"{run['workers']} workers: {run['cpu_per_1000']:.2f} s of the chief's CPU per "
            f"1,000 steps, {run['steps'] / run['messages']:.1f} steps in a message, "
            f"{run['steps_per_second']:.0f} steps/s",
            flush=True,
        )


if __name__ == "__main__":
    define_flags()
    app.run(main)
