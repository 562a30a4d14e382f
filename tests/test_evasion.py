"""Evasion: FGSM and PGD stay where they may go, and find what there is to find."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.adversarial import FGSM, PGD, AdversarialTraining, adversarial_examples

LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
PIXELS = 6


def model(hidden=16, classes=3, dropout=0.0):
    keras.utils.set_random_seed(1)
    built = keras.Sequential(
        [
            keras.Input((PIXELS,)),
            keras.layers.Dense(hidden, activation="tanh"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(classes),
        ]
    )
    built.compile("sgd", LOGITS)
    return built


@pytest.fixture(scope="module")
def network():
    return model()


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (20, PIXELS)).astype("float32")
    x[:5] = np.round(x[:5])  # At the ends of the range, where cuts happen.
    return x, rng.integers(3, size=20)


def losses(network, x, y):
    return LOGITS(y, network(x)).numpy()


attacks = pytest.mark.parametrize(
    "attack",
    [
        FGSM(0.1),
        PGD(0.1),
        PGD(0.1, steps=3, step_size=0.2, random_start=False),
        PGD(2.0, steps=5),
    ],
    ids=str,
)


@attacks
def test_examples_stay_in_the_ball_and_the_range(network, data, attack):
    x, y = data
    found = adversarial_examples(attack, network, x, y)
    assert found.dtype == x.dtype
    assert found.min() >= 0
    assert found.max() <= 1
    assert np.abs(found - x).max() <= attack.epsilon + 1e-6
    assert np.abs(found - x).max(axis=1).min() > 0.05


@attacks
def test_the_loss_of_each_example_grows(network, data, attack):
    x, y = data
    found = adversarial_examples(attack, network, x, y)
    assert (losses(network, found, y) > losses(network, x, y)).all()


def test_more_steps_find_a_larger_loss(network, data):
    x, y = data
    found = [
        losses(network, adversarial_examples(attack, network, x, y), y).mean()
        for attack in (FGSM(1.0), PGD(1.0, steps=40))
    ]
    assert found[0] < found[1]


def linear():
    keras.utils.set_random_seed(2)
    built = keras.Sequential([keras.Input((PIXELS,)), keras.layers.Dense(1)])
    built.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    return built


@pytest.mark.parametrize("attack", [FGSM(0.25), PGD(0.25, steps=10)], ids=str)
def test_on_a_linear_model_attacks_find_the_worst_corner(attack):
    network = linear()
    # In the middle of the range: the ball's corners are inputs.
    x = np.random.default_rng(3).uniform(0.3, 0.7, (4, PIXELS)).astype("float32")
    y = np.array([[0.0], [1.0], [0.0], [1.0]], "float32")
    found = adversarial_examples(attack, network, x, y)
    corners = np.array(list(itertools.product([-0.25, 0.25], repeat=PIXELS)), "float32")
    for each, worst, label in zip(x, found, y, strict=True):
        logits = network(each + corners).numpy()
        # The loss grows with the logit where the label is 0, and falls where it is 1.
        corner = logits.argmin() if label else logits.argmax()
        np.testing.assert_allclose(worst, each + corners[corner], atol=1e-6)


def test_an_example_does_not_depend_on_its_batch(network, data):
    x, y = data
    attack = PGD(0.2, steps=5, random_start=False)
    whole = adversarial_examples(attack, network, x, y)
    parts = adversarial_examples(attack, network, x, y, batch_size=7)
    np.testing.assert_allclose(whole, parts, atol=1e-6)


def test_a_seed_repeats_the_random_start(network, data):
    x, y = data
    # A longer step would end at the bound, wherever it started.
    attack = PGD(0.1, steps=1, step_size=0.01)
    one, same, other = (
        adversarial_examples(attack, network, x, y, seed=seed, batch_size=10)
        for seed in (4, 4, 5)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    # And batches start at different points.
    twice = adversarial_examples(
        PGD(0.1, steps=1, step_size=1e-9),
        network,
        np.full((20, PIXELS), 0.5, "float32"),
        y,
        batch_size=10,
    )
    assert not np.allclose(twice[:10], twice[10:])


def test_dropout_is_off(data):
    x, y = data
    network, dropping = model(), model(dropout=0.9)
    dropping.set_weights(network.get_weights())
    one, other = (
        adversarial_examples(FGSM(0.1), each, x, y) for each in (network, dropping)
    )
    np.testing.assert_array_equal(one, other)


def test_a_graph_may_train_on_perturbed_inputs(network, data):
    x, y = data

    @tf.function
    def gradient(x):
        def loss_of(inputs):
            return LOGITS(y, network(inputs))

        with tf.GradientTape() as tape:
            loss = loss_of(PGD(0.1, steps=2).perturbed(loss_of, x, tf.constant([1, 2])))
        return tape.gradient(loss, network.trainable_variables)

    assert all(np.abs(each).max() > 0 for each in gradient(tf.constant(x)))


def test_the_loss_may_be_given_by_name(data):
    x, y = data
    network = keras.Sequential(
        [keras.Input((PIXELS,)), keras.layers.Dense(3, activation="softmax")]
    )
    name = "sparse_categorical_crossentropy"
    found = adversarial_examples(FGSM(0.1), network, x, y, loss=name)
    assert np.abs(found - x).max() == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FGSM(0), "epsilon is above 0 and finite; received 0"),
        (lambda: PGD(float("nan")), "received nan"),
        (lambda: FGSM(0.1, (1, 0)), r"its largest number; received \(1, 0\)"),
        (lambda: PGD(0.1, steps=0), "received steps=0"),
        (lambda: PGD(0.1, step_size=-1), "received -1"),
    ],
)
def test_an_attack_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((20, PIXELS), "uint8")}, "received uint8. For bytes"),
        ({"x": np.full((20, PIXELS), 3.0)}, "received 3 to 3. Give the attack"),
        ({"x": np.full((20, PIXELS), np.nan)}, "received nan"),
        ({"y": np.zeros(3)}, "received 20 examples, 3 labels"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"loss": ["mse", "mse"]}, "received several"),
    ],
)
def test_data_that_cannot_be_attacked_is_refused(network, data, change, message):
    arguments = {"x": data[0], "y": data[1], **change}
    with pytest.raises(ValueError, match=message):
        adversarial_examples(FGSM(0.1), network, **arguments)


def test_a_model_without_a_loss_is_refused(data):
    network = keras.Sequential([keras.Input((PIXELS,)), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="received none"):
        adversarial_examples(FGSM(0.1), network, *data)


def trained(network, x, y, attack=None, epochs=1, rate=0.5):
    """The weights after `fit`, from those of `network`, which stay."""
    copy = keras.models.clone_model(network)
    copy.set_weights(network.get_weights())
    wrapped = AdversarialTraining(copy, attack) if attack else copy
    wrapped.compile(keras.optimizers.SGD(rate), LOGITS)
    wrapped.fit(x, y, batch_size=20, epochs=epochs, verbose=0)
    return copy


def test_a_step_of_adversarial_training_is_one_on_adversarial_examples(network, data):
    x, y = data
    attack = FGSM(0.2)
    wanted = trained(network, adversarial_examples(attack, network, x, y), y)
    found = trained(network, x, y, attack)
    for one, other in zip(wanted.get_weights(), found.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    plain = trained(network, x, y)
    assert not np.allclose(plain.get_weights()[0], found.get_weights()[0], atol=1e-3)


def test_adversarial_training_predicts_and_evaluates_as_the_model(network, data):
    x, y = data
    wrapped = AdversarialTraining(network, PGD(0.2, steps=2))
    wrapped.compile("sgd", LOGITS)
    np.testing.assert_allclose(
        wrapped.predict(x, verbose=0), network(x).numpy(), atol=1e-6
    )
    assert wrapped.evaluate(x, y, verbose=0) == pytest.approx(
        losses(network, x, y).mean(), rel=1e-5
    )


def test_random_starts_differ_between_steps(network, data):
    x, _ = data
    seen = []

    class Spy:
        def perturbed(self, loss_of, x, seed):
            seen.append(tuple(seed.numpy()))
            return x

    wrapped = AdversarialTraining(network, Spy())
    wrapped.compile("sgd", LOGITS, run_eagerly=True)
    wrapped.fit(x, np.zeros(20), batch_size=10, epochs=1, verbose=0)
    assert len(set(seen)) == 2


def test_a_model_that_is_not_built_is_refused():
    with pytest.raises(ValueError, match="is not built"):
        AdversarialTraining(keras.Sequential([keras.layers.Dense(1)]), FGSM(0.1))
