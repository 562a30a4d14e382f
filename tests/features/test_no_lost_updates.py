"""No lost updates with two asynchronous workers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import Seen

pytestmark = pytest.mark.parameter_server

layers = keras.layers

RUNS = 2
BATCH_SIZE, STEPS = 4, 96
SAMPLES = BATCH_SIZE * STEPS
# A power of two: sums of the updates are exact.
LEARNING_RATE = 2.0**-10

TARGETS = np.arange(SAMPLES, dtype="float32")[:, None]


def total_output(y, y_pred):
    """A loss whose gradient does not depend on the weights."""
    return tf.reduce_sum(y_pred, axis=list(range(1, y_pred.shape.rank)))


@pytest.fixture(params=[1, 10], ids=["each-step", "ten-steps"])
def train(request, until_both_ran, runs_on_workers):
    """Fit a model, check the counters that both workers wrote, and return the steps."""

    def fit(model, x, optimizer="sgd", loss="mse"):
        if optimizer == "sgd":
            optimizer = keras.optimizers.SGD(LEARNING_RATE)
        model.compile(
            optimizer, loss, metrics=[Seen(SAMPLES)], steps_per_execution=request.param
        )

        def fit_once():
            with runs_on_workers(STEPS):
                history = model.fit(
                    x, TARGETS, batch_size=BATCH_SIZE, verbose=0
                ).history
            np.testing.assert_array_equal(history["seen"][0], np.ones(SAMPLES))

        # One worker alone cannot lose an update.
        steps = STEPS * until_both_ran(fit_once)
        assert model.optimizer.iterations == steps
        return steps

    return fit


repeated = pytest.mark.parametrize("run", range(RUNS))


@pytest.mark.in_part("each-step-0", "ten-steps-1")
@repeated
@pytest.mark.feature("Counters and metrics are exact")
def test_counts(strategy, train, run):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        train(model, np.zeros((SAMPLES, 4)), optimizer=keras.optimizers.Adam())


@pytest.mark.in_part("each-step-0", "ten-steps-1")
@pytest.mark.in_gate("each-step-0")
@repeated
@pytest.mark.feature("The sum of dense gradients is exact")
def test_dense_weights(strategy, train, run):
    width = 64
    with strategy.scope():
        dense = layers.Dense(width, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((width,)), dense])
        steps = train(model, np.ones((SAMPLES, width)), loss=total_output)
    kernel, bias = dense.get_weights()
    np.testing.assert_array_equal(kernel, np.full_like(kernel, -steps * LEARNING_RATE))
    np.testing.assert_array_equal(bias, np.full_like(bias, -steps * LEARNING_RATE))


@pytest.mark.in_part("each-step-0", "ten-steps-1")
@pytest.mark.in_gate("ten-steps-1")
@repeated
@pytest.mark.feature("The sum of an embedding's gradients is exact")
def test_rows_of_an_embedding(strategy, train, run):
    ids = np.array([0, 1, 1, 2, 2, 2, 5])
    with strategy.scope():
        embedding = layers.Embedding(8, 4096, embeddings_initializer="zeros")
        model = keras.Sequential([keras.Input((len(ids),), dtype="int32"), embedding])
        steps = train(model, np.tile(ids, (SAMPLES, 1)), loss=total_output)
    times = np.bincount(ids, minlength=8)[:, None]
    table = embedding.get_weights()[0]
    expected = -steps * LEARNING_RATE * np.broadcast_to(times, table.shape)
    np.testing.assert_array_equal(table, expected)


@pytest.mark.in_part("each-step-0", "ten-steps-1")
@pytest.mark.in_gate("each-step-0")
@repeated
def test_state_of_layers(strategy, train, run):
    """Batch normalization, dropout: their states see each step, too."""
    with strategy.scope():
        normalization = layers.BatchNormalization(momentum=0.99)
        dropout = layers.Dropout(0.5, seed=7)
        model = keras.Sequential(
            [keras.Input((4,)), normalization, dropout, layers.Dense(1)]
        )
        steps = train(model, np.full((SAMPLES, 4), 2.0))
    np.testing.assert_array_equal(dropout.seed_generator.state.numpy(), [7, steps])
    mean, variance = normalization.get_weights()[2:]
    # After n sequential steps the mean is 2 (1 - 0.99^n). One that lost a tenth of
    # its steps, or counted a tenth of them twice, is off by more.
    np.testing.assert_allclose(mean, 2.0 * (1 - 0.99**steps), rtol=0.05)
    np.testing.assert_allclose(variance, 0.99**steps, rtol=0.1)
