"""A worker's steps fail while a ps is away; then another program uses both.

Every process is forked before TensorFlow starts in any. Arguments: the ports of ps and worker.
"""

import multiprocessing
import os
import socket
import sys
import time

import tensorflow as tf

import tf_config
from tfdist.cluster.reach import have_workers_reach_ps

PORTS = dict(zip(("ps", "worker"), map(int, sys.argv[1:]), strict=True))
CLUSTER = {job: [f"127.0.0.1:{port}"] for job, port in PORTS.items()}
DEADLINE = 120.0
WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
fork = multiprocessing.get_context("fork")
ps_is_lost = fork.Event()


@tf.function
def step():
    with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
        value = tf.raw_ops.RandomUniform(shape=[1], dtype=tf.float32)
    return value + 1.0


def run_step():
    with tf.device(WORKER):
        step().numpy()


def serve(job, when=None):
    if when is not None:
        when.wait()
    tf.distribute.Server(CLUSTER, job, 0, protocol="grpc").join()


def connect():
    while any(_is_closed(port) for port in PORTS.values()):
        time.sleep(0.01)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(CLUSTER), rpc_layer="grpc"
    )
    tf.config.experimental_connect_to_cluster(
        resolver, make_master_device_default=False
    )


def _is_closed(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def second_program():
    ps_is_lost.wait()
    connect()
    worker = tf_config.Task("worker", 0)
    have_workers_reach_ps({worker: CLUSTER["worker"][0]}, 1, DEADLINE)
    run_step()
    print("the second program has run a step", flush=True)


def main():
    targets = [
        (serve, "ps"),
        (serve, "worker"),
        (serve, "ps", ps_is_lost),
        (second_program,),
    ]
    tasks = [fork.Process(target=f, args=args) for f, *args in targets]
    for task in tasks:
        task.start()
    ps, *others, second = tasks
    connect()
    run_step()
    ps.kill()
    ps.join()
    for _ in range(5):
        try:
            run_step()
        except tf.errors.UnavailableError:
            print("a step failed without its ps", flush=True)
    ps_is_lost.set()
    second.join(DEADLINE)
    for task in (*others, second):
        task.kill()
        task.join()
    os._exit(0)  # The context of a lost ps would be waited for.


main()
