"""Keras's `fit` on four logical CPU devices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

from .all_reduce_cases import Counted, make_logical_cpus

pytestmark = pytest.mark.own_process

DEVICES = [f"CPU:{i}" for i in range(4)]
SAMPLES, BATCH, EPOCHS = 40, 16, 3  # The last batch of an epoch is of 8.
STEPS = 3 * EPOCHS
WORDS = 11


def trained(cross_device_ops) -> list[np.ndarray]:
    strategy = tf.distribute.MirroredStrategy(
        DEVICES, cross_device_ops=cross_device_ops
    )
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    words = rng.integers(WORDS, size=(SAMPLES, 5))
    y = rng.normal(size=(SAMPLES, 1)).astype(np.float32)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(WORDS, 8),
                keras.layers.Flatten(),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((words, y)).batch(BATCH)
    model.fit(data, epochs=EPOCHS, verbose=0)
    assert keras.ops.convert_to_numpy(model.optimizer.iterations) == STEPS
    for variable in model.trainable_variables:
        first, *others = [each.numpy() for each in variable.value.values]
        for other in others:
            np.testing.assert_array_equal(first, other)
    return model.get_weights()


@pytest.fixture(scope="module", autouse=True)
def four_devices():
    make_logical_cpus(len(DEVICES))


@pytest.fixture(scope="module")
def wanted():
    return trained(tf.distribute.ReductionToOneDevice())


@pytest.mark.parametrize(
    ("algorithm", "bucket_bytes", "buckets"),
    [
        ("ring", 1, 4),
        ("halving_doubling", None, 1),
        # In shared memory, nothing has to be sent.
        (None, 1, 0),
    ],
)
def test_fit_gives_the_weights_of_reduction_to_one_device(
    wanted, algorithm, bucket_bytes, buckets
):
    ops = Counted(algorithm, bucket_bytes=bucket_bytes)
    for weights, alike in zip(trained(ops), wanted, strict=True):
        np.testing.assert_allclose(weights, alike, rtol=1e-4, atol=1e-5)
    # Slices of the embedding are gathered; the others are 4 tensors.
    assert ops.runs == buckets * STEPS


def test_fit_with_half_of_the_bytes_stays_close(wanted):
    weights = trained(tfdist.RingAllReduce(wire_dtype="bfloat16"))
    for mine, exact in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(mine, exact, atol=0.05)
    assert any(
        np.any(mine != exact) for mine, exact in zip(weights, wanted, strict=True)
    )
