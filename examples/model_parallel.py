"""Trains a model that is too large for any process of the job.

Every process may have `--allowed_mb` megabytes more than it begins with: the kernel refuses
it more (RLIMIT_DATA). The weights of the model, Adam's moments, the gradients and what a step
computes meanwhile need more than that, so one process cannot train it:

    python examples/model_parallel.py --alone

In two stages, each of two workers has half of them:

    tfdist local --num_ps=0 --num_workers=2 --program=coordinator \
        examples/model_parallel.py

All processes are on this machine, for a process can limit only those beside it.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdist

FLAGS = flags.FLAGS
FEATURES, BATCH = 64, 256


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_bool("alone", False, "Train in this process, without stages.")
    flags.DEFINE_integer("allowed_mb", 850, "More than a process begins with.")
    flags.DEFINE_integer("layers", 12, "Large layers of the model.", lower_bound=2)
    flags.DEFINE_integer("units", 2048, "Of each layer.", lower_bound=1)
    flags.DEFINE_integer("microbatches", 4, "Of each batch.", lower_bound=1)
    flags.DEFINE_integer("epochs", 3, "Passes over the data.", lower_bound=1)


def build_model(layers: int, units: int) -> keras.Model:
    """Returns a chain of layers of `units` by `units` weights each."""
    model = keras.Sequential([keras.Input((FEATURES,))])
    model.add(keras.layers.Dense(units, "relu"))
    for _ in range(layers):
        model.add(keras.layers.Dense(units, "relu"))
    model.add(keras.layers.Dense(1))
    return model


def data() -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs, and their mean squared: something to learn."""
    x = np.random.default_rng(0).normal(size=(8 * BATCH, FEATURES)).astype("float32")
    return x, np.square(x).mean(1, keepdims=True)


def process_of(device: str) -> int:
    """Returns the number of the process that a device belongs to."""
    with tf.device(device):
        stat = tf.strings.split(tf.io.read_file("/proc/self/stat"), " ")
        return int(stat[0].numpy())


def limit(process: int, megabytes: int) -> None:
    """Allows a process so much memory more than it has now."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    [has] = [line.split()[1] for line in status if line.startswith("VmData:")]
    most = 1024 * int(has) + megabytes * 2**20
    resource.prlimit(process, resource.RLIMIT_DATA, (most, most))


def main(argv: Sequence[str]) -> int:
    """Trains, and says what each process has; 1 if the memory does not suffice."""
    del argv
    strategy = (
        None
        if FLAGS.alone
        else tfdist.research.PipelineStrategy("auto", microbatches=FLAGS.microbatches)
    )
    devices = strategy.devices if strategy else ["/cpu:0"]
    for process in {os.getpid(), *map(process_of, devices)}:
        limit(process, FLAGS.allowed_mb)
    print(f"Each process may have {FLAGS.allowed_mb} MB more", flush=True)
    x, y = data()
    try:
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = build_model(FLAGS.layers, FLAGS.units)
            model.compile(keras.optimizers.Adam(1e-4), "mse")
        history = model.fit(x, y, batch_size=BATCH, epochs=FLAGS.epochs, verbose=2)
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        print(f"The memory of a process does not suffice: {str(error).splitlines()[0]}")
        return 1
    for device in devices:
        here = sum(
            weight.value.dtype.size * weight.value.shape.num_elements()
            for weight in (*model.weights, *model.optimizer.variables)
            if strategy is None or weight.value.device == device
        )
        print(f"{device} has {here / 2**20:.0f} MB of variables")
    losses = history.history["loss"]
    print(f"The loss went from {losses[0]:.3f} to {losses[-1]:.3f}")
    return 0


if __name__ == "__main__":
    define_flags()
    app.run(main)
