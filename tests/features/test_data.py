"""Data: each example is used exactly once per epoch."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import Seen, compiled, counting
from uses_of_data import assert_seen_once

import launch

from ..support.deadline import STARTUP_DEADLINE
from ..support.raising import raises

SAMPLES = 45
STEPS = 6  # Batches of 8, and one of 5.
ONCE = np.ones(SAMPLES)


@pytest.fixture
def samples():
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
    return x, np.arange(SAMPLES, dtype="float32")[:, None]


@pytest.fixture
def model(strategy):
    with strategy.scope():
        return counting(SAMPLES)


@pytest.fixture
def fits_once(model, runs_on_workers):
    """Asserts that every epoch over the data uses each sample exactly once."""

    def fit(*data, epochs=2, steps=STEPS, seen=ONCE, **options):
        with runs_on_workers(epochs * steps):
            history = model.fit(*data, epochs=epochs, verbose=0, **options).history
        np.testing.assert_array_equal(history["seen"], [seen] * epochs)
        assert np.isfinite(history["loss"]).all()

    return fit


def dataset(samples):
    return tf.data.Dataset.from_tensor_slices(samples)


@pytest.mark.in_gate
@pytest.mark.feature("NumPy arrays")
def test_numpy(fits_once, samples, model):
    fits_once(*samples, batch_size=8)
    results = model.evaluate(*samples, batch_size=8, verbose=0, return_dict=True)
    np.testing.assert_array_equal(results["seen"], ONCE)


@pytest.mark.feature("Tensors")
def test_tensors(fits_once, samples):
    fits_once(*map(tf.constant, samples), batch_size=8)


@pytest.mark.in_gate
@pytest.mark.feature("A finite `tf.data.Dataset`")
def test_finite_dataset(fits_once, samples):
    fits_once(dataset(samples).shuffle(SAMPLES).batch(8).prefetch(2))


@pytest.mark.feature(
    "A seeded `tf.data` shuffle: the same batches in each epoch as in one process",
    "-",
    synchronous="yes",
)
def test_shuffled_epochs_are_those_of_one_process(strategy, samples, runs_on_workers):
    def fit(model):
        data = dataset(samples).shuffle(SAMPLES, seed=1).batch(3)
        return model.fit(data, epochs=2, verbose=0).history["loss"]

    def build():
        return compiled(keras.layers.Dense(1), optimizer=keras.optimizers.SGD(0.01))

    with strategy.scope():
        model = build()
    plain = build()
    plain.set_weights(model.get_weights())
    with runs_on_workers(2 * SAMPLES // 3):
        losses = fit(model)
    assert losses == pytest.approx(fit(plain), rel=1e-4)


@pytest.mark.in_gate
@pytest.mark.parameter_server
@pytest.mark.feature("`tf.data` reshuffles in each epoch")
def test_each_epoch_is_shuffled_anew(strategy, samples):
    class Ordered(keras.Sequential):
        def train_step(self, data):
            return {**super().train_step(data), "order": data[1][:, 0]}

    with strategy.scope():
        model = Ordered([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-4), "mse")
    data = dataset(samples).shuffle(SAMPLES).batch(SAMPLES, drop_remainder=True)
    one, other = model.fit(data, epochs=2, verbose=0).history["order"]
    np.testing.assert_array_equal(np.sort(one), np.arange(SAMPLES))
    np.testing.assert_array_equal(np.sort(other), np.arange(SAMPLES))
    assert not np.array_equal(one, other)


@pytest.mark.parameter_server
def test_nothing_is_traced_at_the_end_of_an_epoch(model, samples, monkeypatch):
    # Every task would have to answer then, one that was just cut off too.
    traced = []
    dataset_map = tf.data.Dataset.map
    monkeypatch.setattr(
        tf.data.Dataset,
        "map",
        lambda *args, **options: traced.append(1) or dataset_map(*args, **options),
    )
    counts = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: counts.append(len(traced))
    )
    data = tf.data.Dataset.from_tensor_slices(samples).batch(8)
    model.fit(data, epochs=3, callbacks=[count], verbose=0)
    assert counts[1:] == [counts[1]] * 2
    assert len(traced) == counts[1] > 0


@pytest.mark.feature("A dataset of unknown cardinality")
def test_unknown_cardinality(fits_once, samples):
    data = dataset(samples).filter(lambda x, y: y[0] != 3.0).batch(8)
    assert data.cardinality() == tf.data.UNKNOWN_CARDINALITY
    fits_once(data, seen=np.where(np.arange(SAMPLES) == 3, 0, 1))


@pytest.mark.feature("`drop_remainder`, and an uneven last batch")
def test_drop_remainder(fits_once, samples):
    fits_once(
        dataset(samples).batch(8, drop_remainder=True),
        steps=5,
        seen=np.arange(SAMPLES) < 40,
    )


@pytest.mark.feature("An endless dataset with `steps_per_epoch`")
def test_endless_dataset(model, samples, runs_on_workers):
    data = dataset(samples).repeat().batch(9)
    with runs_on_workers(2 * 5):
        history = model.fit(data, epochs=2, steps_per_epoch=5, verbose=0).history
    assert history["seen"][0].sum() == history["seen"][1].sum() == SAMPLES


@pytest.mark.in_gate
@pytest.mark.feature("`tf.data.Dataset.from_generator`")
def test_dataset_from_generator(fits_once, samples):
    signature = (tf.TensorSpec([4]), tf.TensorSpec([1]))
    data = tf.data.Dataset.from_generator(
        lambda: zip(*samples, strict=True), output_signature=signature
    )
    fits_once(data.batch(8))


@pytest.mark.feature("A dataset with `tf.numpy_function`")
def test_dataset_with_python_function(fits_once, samples):
    def double(x, y):
        x = tf.numpy_function(lambda x: 2 * x, [x], tf.float32)
        return tf.ensure_shape(x, [4]), y

    fits_once(dataset(samples).map(double).batch(8))


class Sequence(keras.utils.PyDataset):
    """Batches of 8, the last one of 5, in a new order after each epoch."""

    def __init__(self, x, y, **options):
        super().__init__(**options)
        self.x, self.y = x, y
        self.order, self.random = np.arange(len(x)), np.random.default_rng(0)
        self.read, self.epochs = [], []

    def __len__(self):
        return -(-len(self.x) // 8)

    def __getitem__(self, index):
        if index > len(self) - 10:
            time.sleep(0.02)  # The last are not read long before their turn.
        self.read.append(index)
        rows = self.order[8 * index : 8 * index + 8]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        self.epochs.append(sorted(self.read))
        self.read.clear()
        self.random.shuffle(self.order)


@pytest.mark.in_gate("2")
@pytest.mark.feature("`keras.utils.PyDataset`, also one shuffled by `on_epoch_end`")
@pytest.mark.parametrize("workers", [1, 2])
def test_py_dataset(strategy, runs_on_workers, workers):
    """Each epoch has more batches than a message, and ends once all are read."""
    steps, epochs = 302, 3
    samples = 8 * steps - 3
    x = np.random.default_rng(0).normal(size=(samples, 4)).astype("float32")
    data = Sequence(x, np.arange(samples)[:, None], workers=workers, max_queue_size=3)
    with strategy.scope():
        metrics = [Seen(samples)]
        model = compiled(keras.layers.Dense(1), optimizer="sgd", metrics=metrics)
    with runs_on_workers(epochs * steps):
        history = model.fit(data, epochs=epochs, verbose=0).history
    np.testing.assert_array_equal(history["seen"], np.ones((epochs, samples)))
    # Keras looks at a batch or two before the first epoch, and says that an epoch ends.
    assert data.epochs[1:] == [list(range(steps))] * epochs
    assert not data.read


@pytest.mark.feature("`PyDataset(use_multiprocessing=True)`")
def test_py_dataset_in_processes(fits_once, samples):
    fits_once(Sequence(*samples, workers=2, use_multiprocessing=True), epochs=1)


@pytest.mark.feature("A Python generator, read once")
def test_generator(fits_once, samples):
    x, y = samples
    batches = ((x[i : i + 8], y[i : i + 8]) for i in range(0, SAMPLES, 8))
    fits_once(batches, epochs=1)


@pytest.mark.in_gate
@pytest.mark.feature("An endless Python generator with `steps_per_epoch`")
def test_endless_generator(fits_once, samples, model):
    def batches():
        while True:
            yield from map(Sequence(*samples).__getitem__, range(STEPS))

    # In one process, Keras validates with the first two batches again in each epoch.
    validation = {"validation_data": batches(), "validation_steps": STEPS // 3}
    fits_once(batches(), steps_per_epoch=STEPS, epochs=3, **validation)
    seen = model.history.history["val_seen"]
    np.testing.assert_array_equal(np.sum(seen, axis=0), ONCE)


@pytest.mark.feature("A generator for `evaluate` and `predict`")
def test_generator_is_evaluated_once(model, samples):
    x, y = samples

    def batches():
        for i in range(0, SAMPLES, 8):
            yield x[i : i + 8], y[i : i + 8]

    results = model.evaluate(batches(), verbose=0, return_dict=True)
    np.testing.assert_array_equal(results["seen"], ONCE)
    prediction = model.predict(batches(), verbose=0)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(prediction, expected, rtol=1e-5)


@pytest.mark.feature("A generator that fails is reported")
def test_generator_that_fails(model, samples):
    def batches():
        yield samples[0][:8], samples[1][:8]
        raise RuntimeError("no more disk")

    with raises(Exception, "no more disk"):
        model.fit(batches(), verbose=0)


def uses_once(fits_once, model, data, x):
    """Checks `fit`, without and with weights of classes, and the other methods."""
    fits_once(data)
    before = model.get_weights()
    fits_once(data, class_weight=dict.fromkeys(range(SAMPLES), 0.0))
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    # Where each worker has its own, in the order of steps and workers.
    assert_seen_once(model, data, x, in_order=False)


@pytest.mark.feature("`experimental_distribute_dataset`, with `class_weight`")
def test_distributed_dataset(fits_once, samples, strategy, model):
    data = strategy.experimental_distribute_dataset(dataset(samples).batch(8))
    uses_once(fits_once, model, data, samples[0])


@pytest.mark.feature("`distribute_datasets_from_function`, whose datasets are shards")
def test_datasets_from_function(fits_once, samples, strategy, model):
    def shard(context):
        mine = dataset(samples).shard(
            context.num_input_pipelines, context.input_pipeline_id
        )
        return mine.batch(context.get_per_replica_batch_size(8))

    data = strategy.distribute_datasets_from_function(shard)
    uses_once(fits_once, model, data, samples[0])


@pytest.mark.parameter_server
def test_endless_datasets_from_function(samples, strategy, model, runs_on_workers):
    def same(context):
        del context
        return dataset(samples).repeat().batch(8)

    data = strategy.distribute_datasets_from_function(same)
    with runs_on_workers(40):
        seen = model.fit(data, steps_per_epoch=20, epochs=2, verbose=0).history["seen"]
    # Several batches of either worker wait in the other epoch, or in none.
    assert np.sum(seen) == 40 * 8
    results = model.evaluate(data, steps=STEPS, verbose=0, return_dict=True)
    assert np.sum(results["seen"]) == STEPS * 8


def test_what_a_function_returns_in_place_of_a_dataset(samples, strategy, model):
    with pytest.raises(TypeError, match=r"from_function|dataset_fn"):
        model.fit(strategy.distribute_datasets_from_function(lambda _: samples[0]))


@pytest.mark.in_gate
@pytest.mark.feature("Dictionaries of features")
def test_dictionary_of_features(strategy, samples, runs_on_workers):
    x, y = samples
    with strategy.scope():
        inputs = {
            "left": keras.Input((2,), name="left"),
            "right": keras.Input((2,), name="right"),
        }
        joined = keras.layers.Concatenate()(list(inputs.values()))
        model = keras.Model(inputs, keras.layers.Dense(1)(joined))
        model.compile("sgd", "mse", metrics=[Seen(SAMPLES)])
    features = {"left": x[:, :2], "right": x[:, 2:]}
    with runs_on_workers(2 * STEPS):
        by_numpy = model.fit(features, y, batch_size=8, verbose=0).history
        by_dataset = model.fit(dataset((features, y)).batch(8), verbose=0).history
    np.testing.assert_array_equal(by_numpy["seen"][0], ONCE)
    np.testing.assert_array_equal(by_dataset["seen"][0], ONCE)


@pytest.mark.feature("Ragged input")
def test_ragged_input(strategy, runs_on_workers):
    rows = [[1, 2, 3], [4], [], [2, 2]] * 3
    y = np.arange(12, dtype="float32")[:, None]

    class SumOfRows(keras.layers.Layer):
        def call(self, ragged):
            padded = ragged.to_tensor(shape=[None, 3])
            return tf.reduce_sum(tf.cast(padded, tf.float32), axis=1, keepdims=True)

        def compute_output_shape(self, shape):
            return (shape[0], 1)

    class Ragged(keras.Model):
        def __init__(self):
            super().__init__()
            self.sum, self.dense = SumOfRows(), keras.layers.Dense(1)

        def call(self, ragged):
            return self.dense(self.sum(ragged))

    data = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(rows), y)).batch(4)
    with strategy.scope():
        model = Ragged()
        model.dense.build((None, 1))
        model.compile("sgd", "mse", metrics=[Seen(12)])
    with runs_on_workers(3):
        history = model.fit(data, verbose=0).history
    np.testing.assert_array_equal(history["seen"][0], np.ones(12))
    sums = np.float32([[6], [4], [0], [4]] * 3)
    kernel, bias = model.dense.get_weights()
    np.testing.assert_allclose(
        model.predict(data, verbose=0), sums @ kernel + bias, rtol=1e-5
    )


@pytest.mark.in_gate
@pytest.mark.feature("Sparse input")
def test_sparse_input(model, samples, runs_on_workers):
    x, y = np.eye(SAMPLES, 4, dtype="float32"), samples[1]
    data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).batch(8)
    with runs_on_workers(STEPS):
        history = model.fit(data, verbose=0).history
    np.testing.assert_array_equal(history["seen"][0], ONCE)
    kernel, bias = model.get_weights()
    prediction = model.predict(data, verbose=0)
    np.testing.assert_allclose(prediction, x @ kernel + bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parameter_server
@pytest.mark.feature("A dataset created before the strategy")
def test_dataset_made_before_the_strategy(run_program, tmp_path):
    patient = {"startup_timeout": STARTUP_DEADLINE}
    with launch.servers(1, 1, log_dir=str(tmp_path), **patient) as servers:
        result = run_program("dataset_before_strategy.py", config=servers.tf_config)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["18"]
