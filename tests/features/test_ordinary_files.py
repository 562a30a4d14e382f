"""Ordinary pipelines of TFRecord files, which the workers read.

Each has the batches of the chief's route, which a dataset has with `AutoShardPolicy.OFF`.
"""

import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled, counting
from record_files import (
    ONCE,
    SAMPLES,
    STEPS,
    batched,
    interleaved,
    is_lease,
    numbers_in,
    off,
    parse,
)
from uses_of_data import assert_seen_once, assert_weighted_as_in_one_process

from tfdist.data import SourceError

from ..support.raising import raises


@pytest.fixture
def paths(record_paths):
    return record_paths


@pytest.fixture
def model(strategy):
    with strategy.scope():
        return counting(SAMPLES)


def repeated(paths):
    records = tf.data.TFRecordDataset(paths, num_parallel_reads=2).take(40).repeat(2)
    return records.shuffle(9, seed=3).map(parse).batch(8, drop_remainder=True)


def in_another_order(paths):
    data = tf.data.TFRecordDataset(paths).skip(2).shard(2, 1).map(parse)
    return data.padded_batch(4).shuffle(5, seed=4, reshuffle_each_iteration=False)


PIPELINES = {each.__name__: each for each in (batched, interleaved, repeated)}
PIPELINES["in_another_order"] = in_another_order
FITS = {
    "epochs": {"epochs": 2},
    "initial_epoch": {"epochs": 3, "initial_epoch": 1},
    "steps_per_epoch": {"epochs": 2, "steps_per_epoch": 2},
}


@pytest.mark.in_gate("interleaved-epochs")
@pytest.mark.parameter_server
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_batches_are_those_of_the_chief(model, paths, dealt, pipeline, fit):
    orders = []
    for change in (off, lambda data: data):
        data = change(PIPELINES[pipeline](paths))
        dealt.clear()
        for _ in range(2):  # The second goes on in the order of its shuffles.
            model.fit(data, verbose=0, **FITS[fit])
        assert [is_lease(row) for row in dealt] == [change is not off] * len(dealt)
        orders.append([numbers_in(row, paths) for row in dealt])
    assert orders[0] == orders[1] != []


@pytest.mark.feature("TFRecord files in an ordinary `tf.data` pipeline")
def test_each_example_once(model, paths, make_directory, runs_on_workers, caplog):
    empty = make_directory("empty") / "none.tfrecord"
    empty.touch()
    data = interleaved([*paths, str(empty)])
    with runs_on_workers(2 * STEPS):
        history = model.fit(data, epochs=2, verbose=0).history
    np.testing.assert_array_equal(history["seen"], [ONCE] * 2)
    assert "the chief reads" not in caplog.text


@pytest.mark.feature("TFRecord files in `evaluate` and `predict`, and for validation")
def test_evaluate_and_predict(model, paths):
    data = batched(paths)
    assert_seen_once(model, data, np.concatenate([x for x, _ in data]))


@pytest.mark.feature("TFRecord files with `class_weight`, and with sample weights")
@pytest.mark.parametrize("kind", ["class", "sample"])
def test_weights(strategy, paths, kind):
    data = tf.data.TFRecordDataset(paths).map(parse)
    assert_weighted_as_in_one_process(strategy, data, SAMPLES, kind)


def first_numbers(record):
    x, y = parse(record)
    return tf.concat([x, y], 0), y


def ragged(record):
    x, y = first_numbers(record)
    return x[: tf.cast(y[0], tf.int32) % 5], y


def sparse(record):
    x, y = first_numbers(record)
    return tf.sparse.from_dense(x), y


def whole_batch(record):
    x, y = first_numbers(record)
    return x[tf.newaxis], y


KINDS = {
    "ragged": lambda records: records.map(ragged).ragged_batch(8),
    "sparse": lambda records: records.map(sparse).batch(8),
    "padded": lambda records: records.map(ragged).padded_batch(8, ([7], [1])),
    "records of batches": lambda records: records.map(whole_batch),
    "mapped batches": lambda records: records.batch(8).map(
        lambda batch: (tf.strings.length(batch)[:, None], tf.ones([tf.size(batch)]))
    ),
}


class Total(keras.layers.Layer):
    def call(self, x):
        if isinstance(x, tf.SparseTensor):
            x = tf.sparse.to_dense(x)
        elif isinstance(x, tf.RaggedTensor):
            x = x.to_tensor()
        total = tf.reduce_sum(tf.cast(x, tf.float32), axis=-1, keepdims=True)
        return tf.ensure_shape(total, [None, 1])


@pytest.mark.parameter_server
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch(strategy, paths, dealt, kind):
    with strategy.scope():
        model = keras.Sequential([Total(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    losses = []
    for change in (off, lambda data: data):
        data = change(KINDS[kind](tf.data.TFRecordDataset(paths)))
        dealt.clear()
        losses.append(model.fit(data, epochs=1, verbose=0).history["loss"])
        assert [is_lease(row) for row in dealt] == [change is not off] * len(dealt)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parameter_server
@pytest.mark.parametrize("size", [None, 4])
def test_an_error_says_what_was_read(strategy, paths, size):
    def fail_at(record):
        x, y = parse(record)
        check = tf.debugging.assert_less(y, 20.0, "too much")
        with tf.control_dependencies([check]):
            return tf.identity(x)[None, :4], y[None]

    with strategy.scope():
        model = compiled(keras.layers.Dense(1))
    data = tf.data.TFRecordDataset(paths).map(fail_at)
    data = data if size is None else data.map(lambda x, y: (x[0], y[0])).batch(size)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        model.fit(data, verbose=0)
    message = str(raised.value)
    assert "too much" in message
    assert f" of {paths[1]}" in message
    assert "AutoShardPolicy.OFF" in message


@pytest.mark.parameter_server
def test_a_file_that_is_replaced_or_vanishes_is_told(model, own_paths):
    first, *_ = own_paths
    # It has all leases before the workers have read by them.
    data = tf.data.TFRecordDataset(own_paths).shuffle(10_000).map(parse).batch(8)

    def replace(batch, logs):
        if batch == 1:
            os.utime(first, ns=(0, 1))

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=replace)
    with raises(SourceError, "was written to"):
        model.fit(data, verbose=0, callbacks=[watch])
    model.fit(data, verbose=0)
    os.unlink(first)
    with pytest.raises(SourceError, match=f"{first} cannot be opened"):
        model.fit(data, verbose=0)


@pytest.fixture
def own_paths(paths, make_directory):
    """Copies, which a test may change."""
    directory = make_directory("own_paths")
    return [shutil.copy(each, directory) for each in paths]
