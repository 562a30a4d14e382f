"""Steps of several replicas: whose gradients count, and that nobody hangs."""

import json

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tfdist
from tfdist.low_level.replica_round import Round

tf1 = tf.compat.v1


@given(
    enough=st.integers(1, 4),
    arrivals=st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 6)), max_size=60),
)
def test_a_step_has_the_gradients_of_enough_different_replicas(enough, arrivals):
    current, brought, told = Round(0, enough), set(), 0
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


IN_THREADS = """
import json, socket, sys, threading
import numpy as np
import tensorflow as tf
import tfdist

tf1 = tf.compat.v1
use_resource = json.loads(sys.argv[1])
GRADIENTS = (1.0, 10.0, 100.0)
DEADLINE = 60.0

class Crash(Exception):
    pass

class Cluster:
    '''A ps and replicas of one process, each replica with a session of its own.'''

    def __init__(self, num_replicas, enough, last_step, directory=None):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(1 + num_replicas)]
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
        for each in sockets:
            each.close()
        self.cluster = {"ps": addresses[:1], "worker": addresses[1:]}
        self.servers = [self.server("ps", 0)]
        self.servers += [self.server("worker", i) for i in range(num_replicas)]
        self.num_replicas, self.enough, self.last_step = num_replicas, enough, last_step
        self.directory = directory
        self.seen = []  # (replica, step, dense, sparse)
        self.may_go = threading.Event()

    def server(self, job, index):
        return tf.distribute.Server(self.cluster, job_name=job, task_index=index)

    def train(self, replica, crash_at=None, is_slow=False):
        server = self.servers[1 + replica]
        setter = tf1.train.replica_device_setter(
            cluster=self.cluster, worker_device=f"/job:worker/task:{replica}"
        )
        with tf.Graph().as_default(), tf1.device(setter):
            with tf1.variable_scope("", use_resource=use_resource):
                step = tf1.train.get_or_create_global_step()
                dense = tf1.get_variable("dense", (), initializer=tf1.zeros_initializer())
                table = tf1.get_variable("table", (3, 2), initializer=tf1.zeros_initializer())
            gradient = tf.constant(GRADIENTS[replica])
            if is_slow:
                gradient = tf.ensure_shape(tf.numpy_function(self.wait, [gradient], tf.float32), ())
            loss = -gradient * dense - gradient * tf.reduce_sum(tf.gather(table, [1]))
            optimizer = tfdist.SyncReplicasOptimizer(
                tf1.train.GradientDescentOptimizer(1.0), self.enough, self.num_replicas, replica
            )
            train_op = optimizer.minimize(loss, global_step=step)
            hooks = [optimizer.make_session_run_hook(replica == 0)]
            hooks.append(tf1.train.StopAtStepHook(last_step=self.last_step))
            tfdist.wait_until_ready(server, DEADLINE)
            with tf1.train.MonitoredTrainingSession(
                master=server.target, is_chief=replica == 0, hooks=hooks,
                checkpoint_dir=self.directory, save_checkpoint_steps=2,
                config=tfdist.session_config(server), log_step_count_steps=None,
            ) as session:
                while not session.should_stop():
                    session.run(train_op)
                    if session.should_stop():
                        break
                    values = session.run_step_fn(
                        lambda step_context: step_context.session.run([step, dense, table])
                    )
                    at = int(values[0])
                    self.seen.append((replica, at, float(values[1]), values[2].tolist()))
                    if at >= self.last_step - 2:
                        self.may_go.set()
                    if crash_at is not None and at >= crash_at:
                        raise Crash

    def wait(self, gradient):
        assert self.may_go.wait(DEADLINE)
        return gradient

    def run(self, *replicas):
        threads = [threading.Thread(target=each, daemon=True) for each in replicas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        assert not any(thread.is_alive() for thread in threads), self.seen

def all_count():
    cluster = Cluster(3, 3, 6)
    cluster.run(*[lambda i=i: cluster.train(i) for i in range(3)])
    return cluster.seen

def backup():
    cluster = Cluster(3, 2, 8)
    cluster.run(*[lambda i=i: cluster.train(i, is_slow=i == 2) for i in range(3)])
    return cluster.seen

def chief_started_again():
    import tempfile
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(2, 2, 9, directory)
        def chief():
            try:
                cluster.train(0, crash_at=5)
            except Crash:
                cluster.seen.append((-1, -1, 0.0, []))
                cluster.train(0)
        cluster.run(chief, lambda: cluster.train(1))
    return cluster.seen

for scenario in (all_count, backup, chief_started_again):
    print(json.dumps(scenario()))
sys.stdout.flush()
import os
os._exit(0)  # TensorFlow's servers cannot be stopped.
"""


@pytest.mark.cluster
@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_who_counts_in_a_step(run_python, use_resource):
    done = run_python(IN_THREADS, json.dumps(use_resource))
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


def optimizer(enough=2, total=2, replica=0):
    descent = tf1.train.GradientDescentOptimizer(0.1)
    return tfdist.SyncReplicasOptimizer(descent, enough, total, replica)


@pytest.mark.parametrize("enough", [0, -1, 3])
def test_a_number_of_replicas_that_there_are_not_is_refused(enough):
    with pytest.raises(
        ValueError, match=f"from 1 to .* replicas, 2; received {enough}"
    ):
        optimizer(enough)


@pytest.mark.parametrize("replica", [-1, 2])
def test_a_replica_that_there_is_not_is_refused(replica):
    with pytest.raises(ValueError, match="replica is an index from 0 to 1"):
        optimizer(replica=replica)


def test_a_step_needs_a_counter_a_gradient_and_a_hook():
    with tf.Graph().as_default():
        variable = tf1.get_variable("v", ())
        step = tf1.train.get_or_create_global_step()
        with pytest.raises(ValueError, match="needs .* the global_step"):
            optimizer().minimize(variable * 2.0)
        with pytest.raises(ValueError, match="needs the gradient of a variable"):
            optimizer().apply_gradients([(None, variable)], step)
        with pytest.raises(ValueError, match="make the hook after minimize"):
            optimizer().make_session_run_hook(is_chief=True)


def test_slots_are_those_of_the_optimizer():
    with tf.Graph().as_default():
        variable = tf1.get_variable("v", ())
        step = tf1.train.get_or_create_global_step()
        adam = tf1.train.AdamOptimizer()
        sync = tfdist.SyncReplicasOptimizer(adam, 1, 1, 0)
        sync.minimize(variable * 2.0, global_step=step)
        assert sync.get_slot_names() == ["m", "v"]
        assert sync.get_slot(variable, "m") is adam.get_slot(variable, "m")
        assert sync.variables() == adam.variables()
