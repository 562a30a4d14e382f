"""Rounds that end without the slowest workers."""

import gc
import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.consistency.timeline import TimelineFile

sys.path.insert(0, str(Path(__file__).parents[1] / "features"))
from models import mlp  # noqa: E402

from ..support.raising import raises

pytestmark = [pytest.mark.cluster, pytest.mark.parameter_server]

BATCH, SAMPLES = 8, 52
BATCHES = 7


@pytest.fixture
def policy(strategy, monkeypatch):
    # Whoever has set a policy is measured, and other tests have set none.
    monkeypatch.setattr(strategy, "_consistency", tfdist.Asynchronous())
    monkeypatch.setattr(strategy, "_measures", False)

    def set_to(policy):
        strategy.consistency = policy

    yield set_to
    gc.collect()  # Now, while the ps answer.


@pytest.fixture
def data():
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
    return x, x @ np.float32([[1.0], [-2.0], [3.0], [0.5]])


def test_every_batch_is_handed_out_once(strategy, policy, data):
    """Each gradient counts or is dropped; with one that counts, each makes an update."""
    policy(tfdist.Synchronous(backup_workers=1))
    with strategy.scope():
        model = mlp(optimizer=keras.optimizers.Adam(0.02))
    before = sum(strategy.worker_report().steps)
    history = model.fit(*data, batch_size=BATCH, epochs=3, verbose=0).history
    assert sum(strategy.worker_report().steps) - before == 3 * BATCHES
    dropped = sum(history["dropped"])
    assert int(model.optimizer.iterations) + dropped == 3 * BATCHES
    assert int(model.optimizer.iterations) >= BATCHES
    assert history["loss"][-1] < history["loss"][0]
    assert history["max_staleness"] == [0, 0, 0]


RATE = 0.01
SLOW_BATCH = 1e5


class Ledger(keras.Model):
    """Keeps account of the gradients that count, on each ps.

    The gradients of `first` and `second` are the mean of the batch. That of `decay` is its
    value, so that a stale one would show.
    """

    def __init__(self):
        super().__init__()
        self.first, self.second, self.decay = (
            self.add_weight((1,), value, name=name)
            for name, value in (
                ("first", "zeros"),
                ("second", "zeros"),
                ("decay", "ones"),
            )
        )
        self.built = True

    def call(self, x):
        mean = tf.reduce_mean(x)
        steps = tf.where(mean == SLOW_BATCH, 400, 0)
        (_, waste) = tf.while_loop(
            lambda i, _: i < steps,
            lambda i, m: (i + 1, tf.linalg.matmul(m, m) / 500.0),
            (0, tf.ones([500, 500]) + tf.reduce_sum(self.decay) * 0.0),
            parallel_iterations=1,
        )
        mean += tf.minimum(tf.abs(tf.reduce_sum(tf.stop_gradient(waste))), 0.0)
        return mean * (self.first + self.second) + 0.5 * self.decay**2

    def check(self, counted=None):
        """Checks that each gradient counts on all ps or on none, and that none is stale."""
        first, second, decay = (float(each.numpy()[0]) for each in self.weights)
        assert first == pytest.approx(second)
        rounds = int(self.optimizer.iterations)
        assert decay == pytest.approx((1 - RATE) ** rounds, rel=1e-4)
        if counted is not None:
            assert first == pytest.approx(-RATE * counted, rel=1e-4)
        return rounds


def ledger_of(strategy):
    with strategy.scope():
        model = Ledger()
        model.compile(
            keras.optimizers.SGD(RATE), lambda y, output: tf.reduce_sum(output)
        )
    devices = {each.value.device for each in model.weights}
    assert len(devices) == 2 or strategy.num_ps == 1
    return model


def numbers(batches, slow=()):
    x = np.repeat(np.arange(1.0, batches + 1), 2).astype("float32")
    for each in slow:
        x[2 * each : 2 * each + 2] = SLOW_BATCH
    return x[:, np.newaxis]


def test_late_gradients_are_dropped_on_every_ps(strategy, policy):
    """A slow batch in the middle of an epoch, and one that nobody is left to overtake."""
    policy(tfdist.Synchronous(backup_workers=1))
    model = ledger_of(strategy)
    fit = {"batch_size": 2, "shuffle": False, "verbose": 0}
    # A worker prepares its first step for a while.
    warm = numbers(50)
    rounds = 0
    for _ in range(20):
        before = strategy.worker_report().steps
        rounds += 50 - model.fit(warm, warm, **fit).history["dropped"][0]
        after = strategy.worker_report().steps
        if all(now > then for now, then in zip(after, before, strict=True)):
            break
    assert model.check() == rounds
    before = float(model.first.numpy()[0])
    batches = 300
    x = numbers(batches, slow=[30])
    dropped = model.fit(x, x, **fit).history["dropped"][0]
    assert dropped >= 1
    assert model.check() == rounds + batches - dropped
    # So the slow one is not among those that count.
    counted = (before - float(model.first.numpy()[0])) / RATE
    assert 0 < counted < sum(range(batches + 1)) < SLOW_BATCH
    before = float(model.first.numpy()[0])
    last = numbers(1, slow=[0])
    model.fit(last, last, **fit)
    assert before - float(model.first.numpy()[0]) == pytest.approx(RATE * SLOW_BATCH)


def test_the_report_counts_each_worker(strategy, policy, monkeypatch, tmp_path):
    """As on the other policies, also in the timeline."""
    policy(tfdist.Synchronous(backup_workers=1))
    monkeypatch.setattr(strategy.gates, "_timeline", TimelineFile(tmp_path / "trace"))
    # A meter that records, and afterwards one that does not, with gates of its own each.
    strategy.gates._gates.clear()
    vars(strategy.gates).pop("_meter", None)
    model = ledger_of(strategy)
    x = numbers(30)
    history = model.fit(x, x, batch_size=2, verbose=0).history
    report = strategy.staleness_report()
    assert report.steps + report.dropped.sum() == 30
    assert report.dropped.sum() == history["dropped"][0]
    assert report.counts[:, 1:].sum() == 0
    assert 0 < report.waiting_share == history["waiting_share"][0] < 1
    assert model.check() == report.steps
    events = json.loads((tmp_path / "trace").read_text())
    steps = [each for each in events if each["name"] == "step"]
    assert len(steps) == 30
    names = {each["name"] for each in events}
    assert {"wait to start", "pull", "compute", "push", "write"} <= names
    strategy.gates._gates.clear()
    vars(strategy.gates).pop("_meter", None)


def test_what_cannot_work_is_refused(strategy, policy):
    with raises(ValueError, "3 workers"):
        policy(tfdist.Synchronous(1, replicas_to_aggregate=2))
    with raises(ValueError, "at most 1"):
        policy(tfdist.Synchronous(2))
    policy(tfdist.Synchronous(1))
    strategy.consistency = strategy.consistency  # As it is.
