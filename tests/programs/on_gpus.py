"""Trains a model on logical devices of one GPU, and compares with one device: CASE."""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1] / "pipeline"))

import pipeline_cases as cases

import tfdist

MEGABYTES = 1024
gpu = tf.config.list_physical_devices("GPU")[0]
tf.config.set_logical_device_configuration(
    gpu, [tf.config.LogicalDeviceConfiguration(MEGABYTES) for _ in range(4)]
)


def compare(make, strategy, optimizer="adam"):
    ours = cases.train(make, strategy, optimizer)
    places = {weight.value.device[-5:] for weight in ours[0].weights}
    assert places == {"GPU:0", "GPU:1", "GPU:2", "GPU:3"}, places
    with tf.device("/gpu:0"):
        cases.assert_alike(ours, cases.train(make, None, optimizer), tolerance=1e-3)


def chain():
    compare(cases.chain, tfdist.research.PipelineStrategy(4, 4, "1f1b"))


def with_skips():
    compare(cases.with_skips, tfdist.research.PipelineStrategy(4, 3, recompute=True))


def transformer():
    compare(cases.transformer, tfdist.research.PipelineStrategy(4, 4, "1f1b"))


def replicas():
    compare(cases.transformer, tfdist.research.PipelineStrategy(2, 2, replicas=2))


def without_waiting():
    """A batch that is alone in its epoch has no other to be late for."""
    strategy = tfdist.research.PipelineStrategy(4, 2, max_staleness=2)
    found = []
    for each in (strategy, None):
        keras.utils.set_random_seed(7)
        with (each or tf.distribute.get_strategy()).scope():
            model = cases.transformer()
            model.compile(keras.optimizers.SGD(0.1), "mse")
        x, y = cases.batch_of(model)
        model.fit(x, y, batch_size=len(x), epochs=3, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def mirrored_ring():
    """Gradients go around a ring of four replicas."""
    devices = [f"/gpu:{number}" for number in range(4)]
    ops = tfdist.RingAllReduce()
    found = []
    for each in (tf.distribute.MirroredStrategy(devices, ops), None):
        keras.utils.set_random_seed(7)
        with (each or tf.distribute.get_strategy()).scope():
            model = cases.with_skips()
            model.compile(keras.optimizers.SGD(0.1), "mse")
        x, y = cases.batch_of(model)
        model.fit(x[:16], y[:16], batch_size=8, epochs=3, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    {
        each.__name__: each
        for each in (
            chain,
            with_skips,
            transformer,
            replicas,
            without_waiting,
            mirrored_ring,
        )
    }[sys.argv[1]]()
