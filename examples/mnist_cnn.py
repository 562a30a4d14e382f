"""Trains a small CNN on MNIST under any strategy of tf.distribute.

The script is ordinary Keras 3: only `make_strategy` knows what it runs on.

A cluster of parameter servers and workers, all on this machine:

    tfdist local --num_ps=2 --num_workers=2 examples/mnist_cnn.py

One process, on every GPU of this machine, or on the first device only:

    python examples/mnist_cnn.py --strategy=mirrored
    python examples/mnist_cnn.py --strategy=one_device

Several synchronous workers that all run this script, or one script whose gradients
travel around a ring of workers:

    tfdist local --num_ps=0 --num_workers=2 \
        examples/mnist_cnn.py --strategy=multi_worker
    tfdist local --num_ps=0 --num_workers=4 --program=coordinator \
        examples/mnist_cnn.py --strategy=ring

The data comes from TFDS. `--dataset=mnist_5k` (see mnist_5k.py) needs no network;
`--dataset=mnist` downloads the 70,000 images of MNIST, 12 MB, once.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import sys
import time
from collections.abc import Iterator

import keras
import mnist_5k  # noqa: F401  Importing it registers the dataset.
import requests
import rich
import rich.box
import rich.table
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app, flags, logging

import tf_config
import tfdist

STRATEGIES = (
    "parameter_server",
    "mirrored",
    "multi_worker",
    "ring",
    "central_storage",
    "one_device",
    "tpu",
)
STAND_INS = 4

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "strategy", "parameter_server", STRATEGIES, "How training is distributed."
)
flags.DEFINE_enum(
    "wire_dtype",
    None,
    ["bfloat16", "float16"],
    "The dtype in which gradients travel (--strategy=ring or mirrored).",
)
flags.DEFINE_enum("dataset", "mnist_5k", ["mnist_5k", "mnist"], "Name in TFDS.")
flags.DEFINE_string(
    "data_dir", None, "Where TFDS stores data; its own default if unset."
)
flags.DEFINE_integer(
    "train_examples", None, "Train on the first N images only.", lower_bound=1
)
flags.DEFINE_integer("epochs", 5, "Passes over the training images.", lower_bound=1)
flags.DEFINE_integer("batch_size", 40, "Images per step.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate",
    3e-3,
    "Initial learning rate of Adam; it decays to 0.",
    lower_bound=0.0,
)
flags.DEFINE_integer(
    "steps_per_execution", 1, "Steps per call of the train function.", lower_bound=1
)
flags.DEFINE_integer("seed", None, "Seed of the weights and the shuffling.")
flags.DEFINE_string("save_path", None, "Save the trained model to this .keras file.")
flags.DEFINE_float(
    "min_accuracy",
    0.0,
    "Fail if the accuracy on the test images is lower.",
    lower_bound=0.0,
    upper_bound=1.0,
)
flags.register_validator(
    "save_path",
    lambda path: (
        path is None or (path.endswith(".keras") and pathlib.Path(path).parent.is_dir())
    ),
    "must end in .keras, the format of Keras 3, and its directory must exist",
)


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Returns the strategy that `--strategy` names."""
    gpus = [f"GPU:{i}" for i, _ in enumerate(tf.config.list_physical_devices("GPU"))]
    first_device = gpus[0] if gpus else "CPU:0"
    if name == "parameter_server":
        return tfdist.ParameterServerStrategy()
    if name == "multi_worker":
        return tfdist.MultiWorkerMirroredStrategy()
    if name == "ring":
        return tfdist.RingStrategy(
            cross_device_ops=tfdist.RingAllReduce(wire_dtype=FLAGS.wire_dtype)
        )
    if name == "mirrored" and FLAGS.wire_dtype:
        # AllReduce() sends nothing between devices that share memory; a ring always does.
        ring = tfdist.RingAllReduce(wire_dtype=FLAGS.wire_dtype)
        return tf.distribute.MirroredStrategy(gpus or cpu_stand_ins(), ring)
    if name == "mirrored":
        # TensorFlow's own choice for GPUs is NCCL.
        ops = None if gpus else tfdist.AllReduce()
        return tf.distribute.MirroredStrategy(gpus or cpu_stand_ins(), ops)
    if name == "central_storage":
        # With several compute devices Keras 3 loses updates of its metrics (nan).
        print(f"Variables live on CPU:0; only one device computes: {first_device}.")
        return tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=[first_device], parameter_device="CPU:0"
        )
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy(first_device)
    return tpu_strategy()


def tpu_strategy() -> tf.distribute.Strategy:
    """Returns a strategy for the TPU of this machine, or exits if there is none."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect("local")
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, tf.errors.OpError) as error:
        why = str(error).splitlines()[0]
        sys.exit(f"--strategy=tpu finds no TPU on this machine ({why}).")


def cpu_stand_ins() -> list[str]:
    """Splits the CPU into logical devices that stand in for GPUs."""
    print(f"No GPU found: {STAND_INS} logical CPU devices stand in for GPUs.")
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * STAND_INS,
    )
    return [f"CPU:{index}" for index in range(STAND_INS)]


def load_data(name: str, replicas: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Returns batches of (images, labels) to train on, and to test on."""
    tfds.disable_progress_bar()
    builder = tfds.builder(name, data_dir=FLAGS.data_dir)
    if name == "mnist" and not builder.is_prepared():
        require_network(name, builder.URL)
    builder.download_and_prepare()
    sizes = {split: info.num_examples for split, info in builder.info.splits.items()}
    train_examples = FLAGS.train_examples or sizes["train"]
    if train_examples > sizes["train"]:
        sys.exit(
            f"--train_examples={train_examples}: {name} has {sizes['train']} training images. "
            "Choose at most as many."
        )
    check_batch_size(replicas, train_examples, sizes["test"])
    # No .cache() here: TFDS already caches a small dataset in memory. After its final
    # prefetch, .cache() would store incomplete data when Keras peeks at one batch.
    train, test = tfds.load(
        name,
        split=[f"train[:{train_examples}]", "test"],
        as_supervised=True,
        data_dir=FLAGS.data_dir,
    )
    train = train.shuffle(train_examples, seed=FLAGS.seed)
    return (
        train.batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE),
        test.batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE),
    )


def require_network(name: str, url: str) -> None:
    """Exits unless `url` answers: TFDS itself would retry for minutes."""
    try:
        requests.head(url, timeout=10)
    except requests.RequestException as error:
        sys.exit(
            f"--dataset={name} must be downloaded first, but {url} does not "
            f"answer ({type(error).__name__}). Use --dataset=mnist_5k, which needs no "
            f"network, or a --data_dir that holds {name}."
        )


def check_batch_size(replicas: int, *sizes: int) -> None:
    """Exits unless `replicas` devices can split every batch of datasets of `sizes`.

    tfdist's own strategies can split any batch.
    """
    if FLAGS.strategy in ("multi_worker", "ring"):
        return
    batch_size = FLAGS.batch_size
    if batch_size % replicas:
        sys.exit(
            f"--batch_size={batch_size} cannot be split evenly among {replicas} "
            f"devices: choose a multiple of {replicas}."
        )
    # The last batch may leave some devices without examples, and oneDNN, on a CPU,
    # returns the wrong shape for the convolution of an empty batch.
    on_cpu = not tf.config.list_physical_devices("GPU")
    uneven = [size for size in sizes if size % batch_size]
    if replicas > 1 and on_cpu and uneven:
        sys.exit(
            f"--batch_size={batch_size} does not divide {uneven[0]} images, and "
            f"{replicas} CPU devices must all get a part of the last batch: choose a "
            f"divisor of {' and '.join(map(str, sizes))}."
        )


def build_model() -> keras.Model:
    """Returns a CNN with 62,346 parameters, from uint8 images to the logits of 10 digits."""
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
    """Wall-clock time of each part of a program, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Times the body of a `with` statement under the name `part`."""
        start = time.monotonic()
        yield
        self.seconds[part] = time.monotonic() - start

    def table(self) -> rich.table.Table:
        """Returns one row per part, in the order in which they ran."""
        table = rich.table.Table("part", box=rich.box.ROUNDED)
        table.add_column("seconds", justify="right")
        for part, seconds in self.seconds.items():
            table.add_row(part, f"{seconds:.1f}")
        return table


def main(argv: list[str]) -> None:
    """Trains, evaluates and reports."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)
    if FLAGS.wire_dtype and FLAGS.strategy not in ("ring", "mirrored"):
        sys.exit(
            f"--wire_dtype={FLAGS.wire_dtype} is for --strategy=ring or mirrored, not "
            f"{FLAGS.strategy}: remove the flag."
        )
    timed = Stopwatch()
    try:
        with timed("strategy"):
            strategy = make_strategy(FLAGS.strategy)
    except (tf_config.ClusterError, TimeoutError) as error:
        sys.exit(f"--strategy={FLAGS.strategy}: {error}")
    if FLAGS.seed is not None:
        keras.utils.set_random_seed(FLAGS.seed)
    # A dataset belongs to the cluster in which it was created, so the strategy comes first.
    with timed("data"):
        replicas = strategy.num_replicas_in_sync
        train, test = load_data(FLAGS.dataset, replicas)

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
        model.fit(
            train, validation_data=test, epochs=FLAGS.epochs, shuffle=False, verbose=2
        )
    with timed("evaluate"):
        loss, accuracy = model.evaluate(test, verbose=0)
    if FLAGS.save_path:
        with timed("save"):
            model.save(FLAGS.save_path)

    if not getattr(strategy, "is_chief", True):
        return  # The chief prints the same.
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
