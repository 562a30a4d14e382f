"""Synchronous steps: which gradients count, and that no replica hangs."""

import json

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tfdist
from tfdist.low_level.replica_round import Round

from ..support.raising import raises

tf1 = tf.compat.v1


@given(
    enough=st.integers(1, 4),
    arrivals=st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 6)), max_size=60),
)
def test_a_step_has_the_gradients_of_enough_different_replicas(enough, arrivals):
    policy = tfdist.Synchronous(backup_workers=5 - enough).for_workers(5)
    current, brought, told = Round(0, policy), set(), 0
    for replica, step in arrivals:
        released = current.arrive(replica, step)
        assert released == ([] if step == current.step else [replica])
        told += len(released)
        if not released:
            brought.add(replica)
        assert current.is_complete == (len(brought) >= enough)
        if current.is_complete:
            assert current.advance(current.step + 1) == sorted(brought)
            brought = set()
    assert not current.is_complete
    assert current.advance(0) == sorted(brought)


@pytest.mark.cluster
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_whose_gradients_count_in_a_step(run_program, use_resource):
    done = run_program("sync_replicas.py", json.dumps(use_resource))
    assert done.returncode == 0, done.stderr
    everyone, backup, again = map(json.loads, done.stdout.splitlines())
    # The average of 1, 10 and 100 in each step, also where it is sparse.
    assert {step for _, step, *_ in everyone} >= {1, 2, 3, 4, 5}
    for _, step, dense, table in everyone:
        assert dense == 37.0 * step
        assert table == [[0.0, 0.0], [37.0 * step] * 2, [0.0, 0.0]]
    # The third is slow: it holds up nothing, and its gradient of step 0 is dropped.
    early = [(step, dense) for _, step, dense, _ in backup if step <= 5]
    assert {step for step, _ in early} == {1, 2, 3, 4, 5}
    assert all(dense == 5.5 * step for step, dense in early)
    # The chief goes on from a checkpoint, and the other with it.
    crash = next(i for i, (replica, *_) in enumerate(again) if replica == -1)
    assert {replica for replica, *_ in again[crash + 1 :]} == {0, 1}
    for replica, step, dense, _ in again:
        assert replica == -1 or dense == 5.5 * step


def optimizer(enough=2, replica=0):
    descent = tf1.train.GradientDescentOptimizer(0.1)
    return tfdist.low_level.SyncReplicasOptimizer(descent, enough, 2, replica)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0,), "from 1 to .* replicas, 2; received 0"),
        ((-1,), "from 1 to .* replicas, 2; received -1"),
        ((3,), "from 1 to .* replicas, 2; received 3"),
        ((2, -1), "replica must be an index from 0 to 1; received -1"),
        ((2, 2), "replica must be an index from 0 to 1; received 2"),
    ],
)
def test_replicas_that_there_are_not_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        optimizer(*numbers)


def test_a_step_needs_a_counter_a_gradient_and_a_hook():
    with tf.Graph().as_default():
        variable = tf1.get_variable("v", ())
        step = tf1.train.get_or_create_global_step()
        with raises(ValueError, "global_step"):
            optimizer().minimize(variable * 2.0)
        with raises(ValueError, "gradient of a variable"):
            optimizer().apply_gradients([(None, variable)], step)
        with raises(ValueError, "minimize"):
            optimizer().make_session_run_hook(is_chief=True)


def test_slots_are_those_of_the_optimizer():
    with tf.Graph().as_default():
        variable = tf1.get_variable("v", ())
        step = tf1.train.get_or_create_global_step()
        adam = tf1.train.AdamOptimizer()
        sync = tfdist.low_level.SyncReplicasOptimizer(adam, 1, 1, 0)
        sync.minimize(variable * 2.0, global_step=step)
        assert sync.get_slot_names() == ["m", "v"]
        assert sync.get_slot(variable, "m") is adam.get_slot(variable, "m")
        assert sync.variables() == adam.variables()
