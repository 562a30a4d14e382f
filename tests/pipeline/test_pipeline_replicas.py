"""Replicas of a pipeline train as one process does, on devices of their own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.research.model_parallel.pipeline.errors import PipelineError

from ..support.raising import raises
from .pipeline_cases import (
    assert_alike,
    batch_of,
    chain,
    graph_of_step,
    logical_devices,  # noqa: F401
    train,
    transformer,
    with_skips,
)

pytestmark = pytest.mark.own_process


@pytest.mark.parametrize(
    ("make", "stages", "replicas", "parts", "schedule", "optimizer", "recompute"),
    [
        (chain, 2, 2, 2, "gpipe", "momentum", False),
        (chain, 1, 4, 1, "gpipe", "adam", False),
        (chain, 2, 2, 16, "1f1b", "adam", True),
        (with_skips, 2, 2, 3, "gpipe", "sgd", True),
        (transformer, 2, 2, 2, "1f1b", "adam", False),
    ],
)
def test_equals_one_process(
    make, stages, replicas, parts, schedule, optimizer, recompute
):
    strategy = tfdist.research.PipelineStrategy(
        stages, parts, schedule, recompute, replicas=replicas
    )
    ours = train(make, strategy, optimizer)
    assert_alike(ours, train(make, None, optimizer))
    model = ours[0]
    x, y = batch_of(model)
    # Three rows are fewer than four replicas.
    for rows in (3, 22):
        np.testing.assert_allclose(
            model.predict(x[:rows], verbose=0), model(x[:rows]), rtol=1e-4, atol=1e-5
        )
    losses = model.evaluate(x, y, verbose=0), model.evaluate(x, y, 3, verbose=0)
    assert losses[0][1] == pytest.approx(losses[1][1], rel=1e-4)


def test_each_weight_and_its_slots_are_on_one_replica():
    strategy = tfdist.research.PipelineStrategy(2, 2, replicas=2)
    model, _ = train(chain, strategy, "adam")
    bytes_on = dict.fromkeys(strategy.extended.worker_devices, 0)
    for names, devices in zip(
        strategy.stages_of(model), strategy.stage_devices, strict=True
    ):
        for weight in (w for name in names for w in model.get_layer(name).weights):
            assert weight.value.device in devices
    for variable in model.optimizer.variables:
        if variable.value.device in bytes_on and variable.shape:
            bytes_on[variable.value.device] += int(np.prod(variable.shape))
    # No replica has more than the largest weight beyond what the other one has.
    for one, other in strategy.stage_devices:
        assert 0 < abs(bytes_on[one] - bytes_on[other]) <= 3 * 12 * 12


def test_each_weight_travels_once_each_way(monkeypatch):
    strategy = tfdist.research.PipelineStrategy(2, 2, replicas=2)
    model, graph = graph_of_step(monkeypatch, wide, strategy)
    shapes = {tuple(weight.shape) for weight in model.weights}
    homes = {id(w): w.value.device for w in model.weights}
    assert len(set(homes.values())) == 4
    sent = {
        (each.name, op.device)
        for op in graph.get_operations()
        for each in op.inputs
        if op.device and each.op.device and op.device != each.op.device
        if each.dtype.is_floating and tuple(each.shape) in shapes
    }
    # The reads of variables have no device: they are where their variable is.
    reads = [
        op
        for op in graph.get_operations()
        if op.type == "Identity" and op.inputs[0].op.type == "ReadVariableOp"
        if tuple(op.inputs[0].shape) in shapes
        and op.device in strategy.extended.worker_devices
    ]
    assert len({op.device for op in reads}) == 4
    gradients = [name for name, _ in sent]
    assert len(gradients) == len(model.weights), sent


def wide():
    """Four weights, each of a shape that no activation has."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(31, use_bias=False),
            layers.Dense(37, use_bias=False),
            layers.Dense(41, use_bias=False),
            layers.Dense(3, use_bias=False),
        ]
    )


def normalized():
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6,)), layers.BatchNormalization(momentum=0.5), layers.Dense(3)]
    )


def test_averages_of_normalization_are_means_over_replicas():
    strategy = tfdist.research.PipelineStrategy(1, 1, replicas=2)
    with strategy.scope():
        model = normalized()
        model.compile("sgd", "mse")
    x = np.arange(24, dtype="float32").reshape(4, 6)
    model.fit(x, np.zeros((4, 3)), batch_size=4, shuffle=False, verbose=0)
    # Half of zero, and half of the mean over the means of two rows each.
    np.testing.assert_allclose(model.layers[0].moving_mean, x.mean(0) / 2, rtol=1e-5)
    variance = (x[:2].var(0) + x[2:].var(0)) / 2
    np.testing.assert_allclose(
        model.layers[0].moving_variance, 0.5 + variance / 2, rtol=1e-5
    )


class Drawn(keras.layers.Layer):
    """Counts how often each number was drawn."""

    def __init__(self, seen):
        super().__init__()
        self.generator = keras.random.SeedGenerator(3)
        self.see = seen.append

    def call(self, x):
        drawn = keras.random.uniform((1,), seed=self.generator)
        with tf.device("/cpu:0"):
            tf.py_function(lambda value: self.see(float(value[0])), [drawn], [])
        return x + 0 * drawn


@pytest.mark.parametrize("recompute", [False, True])
def test_replicas_draw_different_numbers(recompute):
    seen = []
    strategy = tfdist.research.PipelineStrategy(1, 2, recompute=recompute, replicas=2)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), Drawn(seen), keras.layers.Dense(3)]
        )
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 6)), np.ones((8, 3)), batch_size=4, verbose=0)
    # Two steps, two replicas, two microbatches; computed again, the same numbers.
    assert len(set(seen)) == 8
    assert len(seen) == (16 if recompute else 8)


def test_refuses_more_replicas_than_devices():
    with raises(PipelineError, "2 stages", "3 replicas", "1 in each"):
        tfdist.research.PipelineStrategy(2, replicas=3)
