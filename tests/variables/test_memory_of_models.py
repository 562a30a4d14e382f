"""The ps give back the memory of models that are gone."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import _tf

from ..launch_programs.launcher import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.parameter_server]

MODELS = 10
IDS, TARGETS = np.arange(8)[:, None], np.zeros((8, 1), "float32")


def model_of(table):
    inputs = keras.Input((1,), dtype="int64")
    rows = keras.layers.Flatten()(table(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(rows))
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=2)
    return model


def partitioned():
    return tfdist.embedding.Embedding(
        100, 4, partitioner=tfdist.FixedShardsPartitioner(2)
    )


TABLES = {
    "whole": lambda: keras.layers.Embedding(100, 4),
    "partitioned": partitioned,
    "growing": lambda: tfdist.embedding.DynamicEmbedding(4, max_rows=100),
}


def places(model):
    """The handles of all variables on ps, which TensorFlow keeps in functions too."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    found = []
    for each in variables:
        value = _tf.value_of(each)
        found += [part.handle for part in getattr(value, "shards", (value,))]
    return found


def bytes_at(handles):
    total = 0
    for each in handles:
        with tf.device(each.device):
            total += 4 * int(tf.reduce_prod(tf.raw_ops.VariableShape(input=each)))
    return total


@pytest.mark.parametrize("table", TABLES)
def test_a_model_that_is_gone_leaves_nothing(strategy, table):
    handles = []
    for _ in range(MODELS):
        with strategy.scope():
            model = model_of(TABLES[table]())
        model.fit(IDS, TARGETS, batch_size=2, verbose=0)
        model.evaluate(IDS, TARGETS, batch_size=2, verbose=0)
        handles += places(model)
    gone = handles[: -len(places(model))]
    gc.collect()
    wait_for(lambda: bytes_at(gone) == 0, "end of the other models' bytes")
    # The last one is still there, and trains.
    assert bytes_at(handles) > 100
    model.fit(IDS, TARGETS, batch_size=2, verbose=0)
    del model
    keras.backend.clear_session()
    gc.collect()
    wait_for(lambda: bytes_at(handles) == 0, "end of the last model's bytes")
