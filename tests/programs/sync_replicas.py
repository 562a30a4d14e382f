"""Replicas in threads, which train in steps: USE_RESOURCE."""

import json
import os
import sys
import tempfile
import threading

import tensorflow as tf

import tfdist
from launch.network import ports

tf1 = tf.compat.v1
use_resource = json.loads(sys.argv[1])
GRADIENTS = (1.0, 10.0, 100.0)
DEADLINE = 200.0  # seconds


class Crash(Exception):
    pass


class Cluster:
    """A ps and replicas in one process; each replica has its own session."""

    def __init__(self, num_replicas, enough, last_step, directory=None):
        addresses = [f"127.0.0.1:{port}" for port in ports.pick(1 + num_replicas)]
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
        setter = tf1.train.replica_device_setter(
            cluster=self.cluster, worker_device=f"/job:worker/task:{replica}"
        )
        with tf.Graph().as_default(), tf1.device(setter):
            train_op, variables, hook = self.build(replica, is_slow)
            with self.session(replica, hook) as session:
                while not session.should_stop():
                    session.run(train_op)
                    if session.should_stop():
                        break
                    self.note(replica, session, variables, crash_at)

    def build(self, replica, is_slow):
        with tf1.variable_scope("", use_resource=use_resource):
            zeros = tf1.zeros_initializer()
            step = tf1.train.get_or_create_global_step()
            dense = tf1.get_variable("dense", (), initializer=zeros)
            table = tf1.get_variable("table", (3, 2), initializer=zeros)
        gradient = tf.constant(GRADIENTS[replica])
        if is_slow:
            gradient = tf.numpy_function(self.wait, [gradient], tf.float32)
            gradient = tf.ensure_shape(gradient, ())
        loss = -gradient * dense - gradient * tf.reduce_sum(tf.gather(table, [1]))
        optimizer = tfdist.low_level.SyncReplicasOptimizer(
            tf1.train.GradientDescentOptimizer(1.0),
            self.enough,
            self.num_replicas,
            replica,
        )
        train_op = optimizer.minimize(loss, global_step=step)
        hook = optimizer.make_session_run_hook(replica == 0)
        return train_op, [step, dense, table], hook

    def session(self, replica, hook):
        server = self.servers[1 + replica]
        tfdist.low_level.wait_until_ready(server, DEADLINE)
        return tf1.train.MonitoredTrainingSession(
            master=server.target,
            is_chief=replica == 0,
            hooks=[hook, tf1.train.StopAtStepHook(last_step=self.last_step)],
            checkpoint_dir=self.directory,
            save_checkpoint_steps=2,
            config=tfdist.low_level.session_config(server),
            log_step_count_steps=None,
        )

    def note(self, replica, session, variables, crash_at):
        # Without the hooks, which would take part in a step.
        step, dense, table = session.run_step_fn(
            lambda step_context: step_context.session.run(variables)
        )
        self.seen.append((replica, int(step), float(dense), table.tolist()))
        if step >= self.last_step - 2:
            self.may_go.set()
        if crash_at is not None and step >= crash_at:
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
os._exit(0)  # TensorFlow's servers cannot be stopped.
