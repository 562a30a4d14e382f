"""A pipeline trains as one process does, on the logical devices of one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

from .pipeline_cases import (
    DEVICES,
    OPTIMIZERS,
    ROWS,
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


@pytest.mark.in_gate("chain-4-4-1f1b-adam-False")
@pytest.mark.parametrize(
    ("make", "stages", "microbatches", "schedule", "optimizer", "recompute"),
    [
        (chain, 2, 1, "gpipe", "sgd", False),
        (chain, 2, 4, "gpipe", "adam", False),
        (chain, 2, 8, "1f1b", "momentum", False),
        (chain, 4, 4, "1f1b", "adam", False),
        (chain, 4, 8, "gpipe", "momentum", True),
        (with_skips, 2, 1, "1f1b", "sgd", True),
        (with_skips, 2, 8, "gpipe", "momentum", False),
        (with_skips, 4, 4, "1f1b", "adam", False),
        (with_skips, 4, 8, "gpipe", "sgd", True),
        (transformer, 2, 4, "gpipe", "momentum", False),
        (transformer, 4, 4, "1f1b", "adam", True),
        pytest.param(transformer, 4, 8, "1f1b", "sgd", False, marks=pytest.mark.slow),
    ],
)
def test_equals_one_process(make, stages, microbatches, schedule, optimizer, recompute):
    strategy = tfdist.research.PipelineStrategy(
        stages, microbatches, schedule, recompute
    )
    ours = train(make, strategy, optimizer)
    assert_alike(ours, train(make, None, optimizer))
    model = ours[0]
    assert len(strategy.stages_of(model)) == stages
    x, _ = batch_of(model)
    np.testing.assert_allclose(
        model.predict(x, batch_size=5, verbose=0),
        np.concatenate([model(x[i : i + 5]) for i in range(0, ROWS, 5)]),
        rtol=1e-4,
        atol=1e-5,
    )


def test_variables_and_slots_are_on_the_devices_of_their_stages():
    strategy = tfdist.research.PipelineStrategy("auto", 2)
    model, _ = train(chain, strategy, "adam")
    assert len(strategy.devices) == DEVICES
    for names, device in zip(strategy.stages_of(model), strategy.devices, strict=True):
        for name in names:
            for weight in model.get_layer(name).weights:
                assert weight.value.device == device
    places = {weight.path.replace("/", "_"): weight for weight in model.weights}
    slots = [
        (slot, weight)
        for slot in model.optimizer.variables
        for path, weight in places.items()
        if slot.path.rpartition("/")[2].startswith(path)
    ]
    # Of each weight two moments and an average.
    assert len(slots) == 3 * len(model.weights)
    for slot, weight in slots:
        assert slot.value.device == weight.value.device, slot.path


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_stay_on_the_devices_of_their_stages(optimizer, monkeypatch):
    """TensorFlow would gather all of them on one device, to add up one replica's."""
    strategy = tfdist.research.PipelineStrategy(2, 2)
    _, graph = graph_of_step(monkeypatch, chain, strategy, optimizer)
    homes = {
        inside.op.name: outside.device
        for outside, inside in graph.captures
        if outside.dtype == tf.resource
    }

    def device_of(op):
        return next(
            (homes[e.op.name] for e in op.inputs if e.op.name in homes), op.device
        )

    weights = {weight.shape for weight in train(chain)[0].weights}
    crossing = [
        (each, op)
        for op in graph.get_operations()
        for each in op.inputs
        if each.dtype != tf.resource and device_of(op) and device_of(each.op)
        if device_of(op) != device_of(each.op) and each.shape in weights
    ]
    assert not crossing
    stages = {device_of(op) for op in graph.get_operations()} & set(strategy.devices)
    assert len(stages) == 2


class Noting(keras.layers.Layer):
    """Notes when a stage computes which microbatch, each way, and where."""

    def __init__(self, stage, seen, **options):
        super().__init__(**options)
        # Not the list itself: Keras would keep a copy of it.
        self.stage, self.see = stage, seen.append

    def call(self, x):
        @tf.custom_gradient
        def noted(x):
            def backward(gradient):
                return self.note("B", gradient, x)

            return self.note("F", x, x), backward

        return noted(x)

    def note(self, kind, value, x):
        def write(value, rows):
            self.see((self.stage, f"{kind}{int(rows[0, 0])}"))
            return value

        noted = tf.numpy_function(write, [value, x], value.dtype)
        noted.set_shape(value.shape)
        return noted


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_stages_compute_in_the_order_of_the_schedule(schedule):
    from tfdist.research.model_parallel.schedule import make_schedule

    strategy = tfdist.research.PipelineStrategy(
        [["a", "first"], ["b", "second"], ["c", "last"]], 4, schedule
    )
    seen = []
    with strategy.scope():
        # The value of each row is the number of its microbatch.
        model = keras.Sequential(
            [
                keras.Input((1,)),
                keras.layers.Dense(1, kernel_initializer="ones", name="a"),
                Noting(0, seen, name="first"),
                keras.layers.Dense(1, kernel_initializer="ones", name="b"),
                Noting(1, seen, name="second"),
                keras.layers.Dense(1, kernel_initializer="ones", name="c"),
                Noting(2, seen, name="last"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.repeat(np.arange(4.0), 2)[:, None].astype("float32")
    seen.clear()
    model.train_on_batch(x, x)
    for number, tasks in enumerate(make_schedule(schedule, 3, 4).stages):
        assert [what for stage, what in seen if stage == number] == list(
            map(str, tasks)
        )
