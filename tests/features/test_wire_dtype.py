"""Weights and gradients in bfloat16: half of the bytes, and no error that adds up."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_audit import task_of
from models import built_in_scope as compiled
from models import positions

import tfdist
from tfdist.parameter_server.exchange import narrow

pytestmark = [pytest.mark.parameter_server, pytest.mark.steps_write]

layers = keras.layers
BATCH, BATCHES = 8, 40


@pytest.fixture
def bfloat16(strategy, monkeypatch):
    monkeypatch.setattr(strategy, "wire_dtype", "bfloat16")
    monkeypatch.setattr(narrow, "LEAST_BYTES", 4 * 20)


class Slope(keras.Model):
    """A loss whose gradient is `slope` for each of 32 weights, whatever these are."""

    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def build(self, shape):
        self.kernel = self.add_weight(shape=(32,), initializer="zeros", name="kernel")

    def call(self, x):
        return tf.reduce_sum(self.kernel) * self.slope + 0.0 * x


def slid(strategy, slope, steps):
    with strategy.scope():
        model = Slope(slope)
        model.build((None, 1))
        model.compile(keras.optimizers.SGD(1.0), loss=lambda y, p: tf.reduce_mean(p))
    x = np.zeros((BATCH * steps, 1), "float32")
    model.fit(x, x, batch_size=BATCH, verbose=0)
    assert int(model.optimizer.iterations) == steps
    return -model.get_weights()[0]


@pytest.mark.feature("`wire_dtype`: what a rounded gradient has lost is sent later")
def test_nothing_is_lost_but_one_rounding_per_worker(strategy, bfloat16):
    slope, steps = 1 + 2**-9, 256
    rounded = float(tf.cast(tf.constant(slope), tf.bfloat16))
    total = slid(strategy, slope, steps)
    lost = slope * steps - total
    assert abs(rounded - slope) * steps > 4 * 2**-7, "more than two workers can keep"
    np.testing.assert_allclose(lost, 0.0, atol=strategy.num_workers * 2**-7)


def bytes_between_tasks(graph):
    """How many bytes cross between tasks, by the devices and shapes alone."""
    crossing = {
        (each.name, task_of(op)): each
        for op in graph.get_operations()
        for each in op.inputs
        if each.dtype != tf.resource and task_of(each.op) != task_of(op)
    }
    return sum(t.shape.num_elements() * t.dtype.size for t in crossing.values())


def wide(partitioner=None):
    def build():
        hidden = layers.Dense(300, activation="relu")
        return keras.Sequential([keras.Input((20,)), hidden, layers.Dense(10)])

    def in_shards():
        with tfdist.partition_variables(partitioner):
            return build()

    return in_shards if partitioner else build


@pytest.mark.in_gate("2-SGD")
@pytest.mark.feature("`wire_dtype`: half of the bytes")
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Lamb"])
@pytest.mark.parametrize("shards", [1, 2])
def test_half_of_the_bytes(strategy, sent, monkeypatch, shards, optimizer):
    x, y = positions(BATCH * BATCHES)
    build = wide(tfdist.FixedShardsPartitioner(shards))
    found = {}
    for wire_dtype in (None, "bfloat16"):
        monkeypatch.setattr(strategy, "wire_dtype", wire_dtype)
        monkeypatch.setattr(narrow, "LEAST_BYTES", 4 * 300)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            made = getattr(keras.optimizers, optimizer)()
        model = compiled(strategy, build, made, steps_per_execution=10)
        before = model.evaluate(x, y, verbose=0)
        sent.functions.clear()
        model.fit(x, y, batch_size=BATCH, verbose=0)
        found[wire_dtype] = bytes_between_tasks(sent.functions[0].graph)
        traffic = strategy.fit_driver.traffic()
        # Where `Lamb` looks at all shards, these also go from ps to ps.
        if optimizer != "Lamb" or shards == 1:
            assert 10 * (traffic.pulled + traffic.pushed) == found[wire_dtype]
        # An evaluation sees the weights as the ps have them.
        weights = model.get_weights()
        after = model.evaluate(x, y, verbose=0)
        plain = wide()()
        plain.compile(None, keras.losses.SparseCategoricalCrossentropy(True))
        plain.set_weights(weights)
        assert after[0] == pytest.approx(plain.evaluate(x, y, verbose=0), rel=1e-5)
        assert after[0] < before[0]
    if optimizer != "Lamb" or shards == 1:
        assert found["bfloat16"] / found[None] < 0.53
    else:
        # Its update takes the shards to one ps, and these travel in full.
        assert found["bfloat16"] < found[None]


@pytest.mark.feature("`wire_dtype`: a table's rows travel as they are")
def test_rows_travel_as_they_are(strategy, sent, bfloat16):
    def build():
        inputs = keras.Input((20,))
        rows = tfdist.embedding.Embedding(50, 6)(keras.ops.cast(inputs > 0, "int32"))
        return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(rows)))

    model = compiled(strategy, build, "adagrad", steps_per_execution=10)
    x, y = positions(BATCH * BATCHES)
    history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    kinds = {
        tuple(op.inputs[0].shape)
        for op in sent.functions[0].graph.get_operations()
        if op.type == "Cast" and op.outputs[0].dtype == tf.bfloat16
    }
    assert kinds == {(120, 10)}
