"""Random operations with a seed: each step draws numbers of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

pytestmark = pytest.mark.parameter_server

STEPS = 130


class Drawing(keras.Model):
    """Notes what each step draws."""

    def __init__(self, draw):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self._draw = draw
        self.drawn = self.add_weight(
            shape=(STEPS,), initializer="zeros", trainable=False, name="drawn"
        )

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, _ = data
        drawn = tf.cast(tf.reshape(self._draw(), []), tf.float32)
        # Each step has a place of its own, so that no worker undoes another's.
        place = tf.one_hot(tf.cast(x[0, 0], tf.int32), STEPS)
        self.drawn.assign_add(place * drawn)
        return super().train_step(data)


def shuffled():
    return tf.random.shuffle(tf.range(10**6), seed=3)[0]


@tf.function
def inside_a_function():
    return tf.random.normal([], seed=3)


def inside_a_branch():
    found = inside_a_function()
    return tf.cond(found < 9.0, lambda: tf.random.normal([], seed=4), lambda: 0.0)


def inside_a_loop():
    def draw(i, _):
        return i + 1, tf.random.normal([], seed=5)

    return tf.while_loop(lambda i, _: i < 2, draw, (0, 0.0))[1]


def epochs(strategy, draw, sizes=(1, 10, 60)):
    """Trains by functions of several sizes; returns what each step has drawn."""
    x = np.arange(STEPS, dtype="float32")[:, None]
    drawn = []
    with strategy.scope():
        model = Drawing(draw)
        for size in sizes:
            model.compile("sgd", "mse", steps_per_execution=size)
            model.drawn.assign(tf.zeros([STEPS]))
            model.fit(x, x * 0, batch_size=1, shuffle=False, verbose=0)
            drawn.append(model.drawn.numpy())
    return np.concatenate(drawn)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: tf.random.uniform([], seed=1),
        lambda: tf.random.normal([]),
        shuffled,
        lambda: tf.random.categorical(tf.zeros([1, 10**6]), 1, seed=2),
    ],
    ids=["uniform", "seed-of-program", "shuffle", "categorical"],
)
def test_no_step_repeats_what_another_drew(strategy, draw):
    drawn = epochs(strategy, draw)
    # Of a million, a few numbers may be drawn twice, and each worker draws float32.
    assert len(np.unique(drawn)) > len(drawn) - 5


@pytest.mark.parametrize("draw", [inside_a_function, inside_a_branch, inside_a_loop])
def test_a_seed_inside_a_function_is_not_that_of_two_workers(strategy, sent, draw):
    drawn = epochs(strategy, draw, sizes=(10,))
    assert len(sent.functions) == 1, "of ten steps"
    assert len(np.unique(drawn)) > STEPS - 5


def test_steps_between_exchanges_draw_numbers_of_their_own(strategy, monkeypatch):
    monkeypatch.setattr(strategy, "exchange", tfdist.ExchangeEvery(5))
    drawn = epochs(strategy, inside_a_branch, sizes=(1, 10))
    assert len(np.unique(drawn)) > len(drawn) - 5
