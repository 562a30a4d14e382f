"""`MultiWorkerMirroredStrategy` with a single replica, which exchanges nothing."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from ..support.one_worker import strategy_of_one_worker

pytestmark = pytest.mark.own_process

BATCH, ROWS = 4, 30  # The last batch is smaller.
IDS = np.arange(ROWS)[:, None] % 7
TARGETS = np.linspace(0, 1, ROWS, dtype="float32")[:, None]


@pytest.fixture(scope="module")
def strategy():
    return strategy_of_one_worker(1)


class Noting(keras.Model):
    """A model that keeps the graph of its step."""

    def train_step(self, data):
        logs = super().train_step(data)
        self.graph_of_step = tf.compat.v1.get_default_graph()
        return logs


def of_known_size():
    return tf.data.Dataset.from_tensor_slices((IDS, TARGETS)).batch(BATCH)


def of_unknown_size():
    return of_known_size().filter(lambda *_: True)


def of_fixed_batches():
    data = tf.data.Dataset.from_tensor_slices((IDS, TARGETS))
    return data.batch(BATCH, drop_remainder=True)


def fitted(data):
    keras.utils.set_random_seed(3)
    rows = keras.Input((1,), dtype="int64")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(7, 3)(rows))
    model = Noting(rows, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=3)
    model.fit(data(), epochs=2, verbose=0)
    return model


@pytest.mark.parametrize("data", [of_known_size, of_unknown_size, of_fixed_batches])
def test_a_step_is_one_process_s_and_neither_exchanges_nor_asks(strategy, data):
    expected = fitted(data)
    with strategy.scope():
        model = fitted(data)
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert model.history.history["loss"] == pytest.approx(
        expected.history.history["loss"], rel=1e-5
    )
    kinds = collections.Counter(op.type for op in model.graph_of_step.get_operations())
    assert kinds["ReadVariableOp"]  # It is the step's graph.
    assert not [kind for kind in kinds if "Collective" in kind or kind.endswith("If")]
