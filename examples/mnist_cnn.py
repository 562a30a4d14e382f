"""Trains a small CNN on MNIST under any strategy of tf.distribute.

The script is ordinary Keras 3: only `make_strategy` knows what it runs on.

A cluster of parameter servers and workers, all on this machine:

    python -m launch.local --num_ps=2 --num_workers=2 examples/mnist_cnn.py

One process, on every GPU of this machine, or on the first device only:

    python examples/mnist_cnn.py --strategy=mirrored
    python examples/mnist_cnn.py --strategy=one_device

The data comes from TFDS. `--dataset=mnist_5k` (see mnist_5k.py) needs no network;
`--dataset=mnist` downloads the 70,000 images of MNIST, 12 MB, once.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator

import keras
import mnist_5k  # noqa: F401  Importing it registers the dataset.
import requests
import rich
import rich.table
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app, flags

import tfdist

FLAGS = flags.FLAGS

flags.DEFINE_enum(
    "strategy",
    "parameter_server",
    [
        "parameter_server",
        "mirrored",
        "multi_worker",
        "central_storage",
        "one_device",
    ],
    "How training is distributed.",
)
flags.DEFINE_enum("dataset", "mnist_5k", ["mnist_5k", "mnist"], "Name in TFDS.")
flags.DEFINE_string("data_dir", None, "Where TFDS keeps data; its default if unset.")
flags.DEFINE_integer(
    "train_examples", None, "Train on the first N images only.", lower_bound=1
)
flags.DEFINE_integer("epochs", 5, "Passes over the training images.", lower_bound=1)
flags.DEFINE_integer("batch_size", 40, "Images a step.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate", 3e-3, "Of Adam at the start; falls to 0.", lower_bound=0.0
)
flags.DEFINE_integer(
    "steps_per_execution", 1, "Steps a call of the train function.", lower_bound=1
)
flags.DEFINE_integer("seed", None, "Of the weights and shuffling.")
flags.DEFINE_string("save_path", None, "Save the trained model here, as .keras.")
flags.DEFINE_float(
    "min_accuracy",
    0.0,
    "Fail if the accuracy on the test images is lower.",
    lower_bound=0.0,
    upper_bound=1.0,
)
flags.register_validator(
    "save_path",
    lambda path: path is None or path.endswith(".keras"),
    "must end in .keras, the format of Keras 3: --save_path=mnist.keras",
)

STAND_INS = 4


def local_devices() -> list[str]:
    """Returns the GPUs of this machine or, without any, CPU devices in their place."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return [f"GPU:{index}" for index in range(len(gpus))]
    print(f"No GPU here: {STAND_INS} logical CPU devices stand in for {STAND_INS} GPUs.")
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * STAND_INS,
    )
    return [f"CPU:{index}" for index in range(STAND_INS)]


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Returns the strategy that `--strategy` names."""
    if name == "parameter_server":
        return tfdist.ParameterServerStrategy()
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(local_devices())
    if name == "central_storage":
        return tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=local_devices(), parameter_device="CPU:0"
        )
    if name == "one_device":
        has_gpu = tf.config.list_physical_devices("GPU")
        return tf.distribute.OneDeviceStrategy("GPU:0" if has_gpu else "CPU:0")
    sys.exit(
        f"--strategy={name} is not supported yet: fit of Keras {keras.__version__} "
        f"fails under tf.distribute.MultiWorkerMirroredStrategy of TensorFlow "
        f"{tf.__version__} (github.com/keras-team/keras/issues/20585). Use "
        "--strategy=parameter_server for several hosts, --strategy=mirrored for one."
    )


def require_network(name: str, url: str) -> None:
    """Exits unless `url` answers: TFDS itself would retry for minutes."""
    try:
        requests.head(url, timeout=10)
    except requests.RequestException as error:
        sys.exit(
            f"--dataset={name} has to be downloaded first, but {url} does not "
            f"answer ({type(error).__name__}). Use --dataset=mnist_5k, which needs no "
            f"network, or a --data_dir that holds {name}."
        )


def load_data(name: str) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Returns batches of (images, labels) to train on, and to test on."""
    builder = tfds.builder(name, data_dir=FLAGS.data_dir)
    if name == "mnist" and not builder.is_prepared():
        require_network(name, builder.URL)
    tfds.disable_progress_bar()
    first = FLAGS.train_examples
    train, test = tfds.load(
        name,
        split=["train" if first is None else f"train[:{first}]", "test"],
        as_supervised=True,
        data_dir=FLAGS.data_dir,
    )
    train = train.shuffle(len(train), seed=FLAGS.seed)
    return (
        train.batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE),
        test.batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE),
    )


def build_model() -> keras.Model:
    """Returns a CNN of 62,346 parameters from uint8 images to the logits of 10."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(32, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


class Stopwatch:
    """How long each part of a program took, in seconds of wall-clock time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Times the body of a `with` statement under the name `part`."""
        start = time.monotonic()
        yield
        self.seconds[part] = time.monotonic() - start

    def table(self) -> rich.table.Table:
        """Returns one row for each part, in the order in which they ran."""
        table = rich.table.Table("part", title="Time")
        table.add_column("seconds", justify="right")
        for part, seconds in self.seconds.items():
            table.add_row(part, f"{seconds:.1f}")
        return table


def main(argv: list[str]) -> None:
    """Trains, tests, and reports."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    timed = Stopwatch()
    with timed("strategy"):
        strategy = make_strategy(FLAGS.strategy)
    if FLAGS.seed is not None:
        keras.utils.set_random_seed(FLAGS.seed)
    # A dataset belongs to the cluster it was made in, so the strategy comes first.
    with timed("data"):
        train, test = load_data(FLAGS.dataset)

    with timed("build"), strategy.scope():
        model = build_model()
        learning_rate = keras.optimizers.schedules.CosineDecay(
            FLAGS.learning_rate, decay_steps=FLAGS.epochs * len(train)
        )
        model.compile(
            optimizer=keras.optimizers.Adam(learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=FLAGS.steps_per_execution,
        )
    with timed("fit"):
        model.fit(train, validation_data=test, epochs=FLAGS.epochs, verbose=2)
    with timed("evaluate"):
        loss, accuracy = model.evaluate(test, verbose=0)
    if FLAGS.save_path:
        with timed("save"):
            model.save(FLAGS.save_path)

    if FLAGS.strategy == "parameter_server":
        print(strategy.placement_report())
        print(strategy.worker_report())
    rich.print(timed.table())
    print(f"Test accuracy: {accuracy:.4f} (loss {loss:.4f})")
    if not math.isfinite(loss):
        sys.exit("Training failed: the loss is not finite. Lower --learning_rate.")
    if accuracy < FLAGS.min_accuracy:
        sys.exit(
            f"Training failed: the accuracy {accuracy:.4f} is below "
            f"--min_accuracy={FLAGS.min_accuracy}."
        )


if __name__ == "__main__":
    app.run(main)
