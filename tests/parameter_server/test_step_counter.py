"""How many steps each worker ran, while some are away."""

from types import SimpleNamespace

import tensorflow as tf

from tf_config import Task
from tfdist import _tf
from tfdist.parameter_server.seam.replicas import Replica
from tfdist.parameter_server.step_counter import StepCounter

from ..support.raising import raises


class Value:
    """The counter on one worker."""

    def __init__(self, steps=0, error=None):
        self.steps = steps
        self.error = error

    def get(self):
        if self.error:
            raise self.error
        return tf.constant(self.steps)


GONE = tf.errors.UnavailableError(None, None, "recvmsg: Connection reset by peer")

AGAIN = tf.errors.AbortedError(
    None, None, "Session handle is not found. Possibly the worker just restarted"
)


def report(monkeypatch, *values, away=(), is_elastic=True, of=()):
    monkeypatch.setattr(_tf, "values_per_worker", lambda variable: values)
    presence = SimpleNamespace(away=frozenset(away), is_elastic=is_elastic)
    counter = StepCounter.__new__(StepCounter)
    counter._presence, counter._steps, counter._has_counted = presence, None, True
    counter._replicas = [Replica(worker, "") for worker in of or range(len(values))]
    counter._num_workers = counter._replicas[-1].worker + 1
    return counter.report().steps


def test_a_worker_that_is_away_counts_as_0_and_is_not_asked(monkeypatch):
    away = Value(error=AssertionError("it was asked"))
    steps = report(monkeypatch, Value(3), away, away=[Task("worker", 1)])
    assert steps == (3, 0)


def test_a_worker_that_has_just_gone_counts_as_0(monkeypatch):
    assert report(monkeypatch, Value(error=GONE), Value(5)) == (0, 5)


def test_a_worker_that_was_started_again_counts_from_0(monkeypatch):
    """Even where all are needed: it is there, and no step has run on it yet."""
    again = Value(error=AGAIN)
    assert report(monkeypatch, again, Value(5), is_elastic=False) == (0, 5)


def test_where_all_workers_are_needed_a_lost_one_is_an_error(monkeypatch):
    with raises(tf.errors.UnavailableError, "reset by peer"):
        report(monkeypatch, Value(error=GONE), Value(5), is_elastic=False)


def test_the_devices_of_a_worker_count_together(monkeypatch):
    values = [Value(steps) for steps in (1, 20, 300, 4000)]
    assert report(monkeypatch, *values, of=[0, 0, 1, 1]) == (21, 4300)
