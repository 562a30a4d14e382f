"""Trains on leases, and prints what was seen: SCENARIO DIRECTORY WORKERS.

SCENARIO is `count`, `before` (the dataset is made before the strategy), `every` (values
move once in four steps), `kill` (a worker), or `bytes`: of large examples, what the chief
sends. With `files_` before it, the dataset is an ordinary one of TFRecord files.
"""

import contextlib
import logging
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import psutil
import tensorflow as tf

import launch
import tfdist
from tfdist.data import from_source
from tfdist.parameter_server.feed import leased_batches

EXAMPLES, EPOCHS, BATCH = 20_003, 3, 8
LARGE, WIDTH = 320, 37_500  # Examples of 150 kB.
ACKED = struct.Struct("=120xQ")  # `tcpi_bytes_acked` of Linux's `tcp_info`.


class Told(logging.Handler):
    """Prints `leased` when a line of the log says that workers read an ordinary dataset."""

    def emit(self, record):
        if "read this dataset themselves" in record.getMessage():
            print("leased", flush=True)


def bytes_sent():
    """What this process has sent through its open connections."""
    total = 0
    for each in psutil.Process().net_connections("tcp"):
        if each.fd < 0 or each.status != psutil.CONN_ESTABLISHED:
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as one:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKED.size)
            total += ACKED.unpack(info)[0]
    return total


def kill_within(strategy, victim):
    """Kills a worker in the second epoch, while many steps are under way."""
    while strategy.in_flight.steps_finished < 1.3 * EXAMPLES / BATCH:
        time.sleep(0.01)
    victim.kill()
    print("killed", flush=True)


def numbers_of_files(directory):
    paths = [str(directory / f"{i}.tfrecord") for i in range(4)]
    for first, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as file:
            for number in range(first, EXAMPLES, len(paths)):
                file.write(b"%d:" % number)

    def parse(record):
        digits = tf.strings.split(record, ":")[0]
        return tf.strings.to_number(digits)[None], 0.0

    records = tf.data.TFRecordDataset(paths).shuffle(1000, seed=1)
    return records.map(parse).batch(BATCH)


def numbers(directory, are_in_files):
    if are_in_files:
        return numbers_of_files(directory)
    np.save(directory / "x.npy", np.arange(EXAMPLES))
    source = from_source(directory / "x.npy", shuffle=True, seed=1)
    return source.map(lambda x: (tf.cast(x, tf.float32)[None], 0.0)).batch(BATCH)


def count(strategy, servers, data, kill):
    with strategy.scope():
        seen = tf.Variable(tf.zeros([EXAMPLES], tf.int64))

    class Count(keras.layers.Layer):
        def call(self, x):
            ones = tf.ones([tf.shape(x)[0]], tf.int64)
            seen.scatter_add(tf.IndexedSlices(ones, tf.cast(x[:, 0], tf.int64)))
            return x

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,)), Count(), keras.layers.Dense(1, trainable=False)]
        )
        model.compile("sgd", "mse")
    if kill:
        victim = psutil.Process(servers.pids["worker:1"])
        threading.Thread(target=kill_within, args=(strategy, victim)).start()
    model.fit(data, epochs=EPOCHS, verbose=0)
    times = seen.numpy()
    for name, number in (
        ("least", times.min()),
        ("most", times.max()),
        ("sum", times.sum()),
    ):
        print(name, number, flush=True)
    with contextlib.suppress(tf.errors.OpError):
        print("steps", *strategy.worker_report().steps, flush=True)


def measure(strategy, servers, directory):
    x = np.zeros((LARGE, WIDTH), "float32")
    np.save(directory / "x.npy", x)
    with strategy.scope():
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    y = np.zeros(LARGE, "float32")
    leases = from_source((directory / "x.npy", y), shuffle=True).batch(BATCH)
    examples = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    for name, data in {"leases": leases, "examples": examples}.items():
        model.fit(data, verbose=0)  # Traces, which are sent once.
        before = bytes_sent()
        model.fit(data, verbose=0, epochs=2)
        sent = (bytes_sent() - before) / (2 * LARGE)
        print(name, f"{sent / (WIDTH * 4):.5f}", flush=True)


def main():
    directory, workers = Path(sys.argv[2]), int(sys.argv[3])
    scenario = sys.argv[1].removeprefix("files_")
    are_in_files = scenario != sys.argv[1]
    logging.getLogger("tfdist").setLevel(logging.INFO)
    logging.getLogger("tfdist").addHandler(Told())
    # Longer records would fill the disk.
    leased_batches._LEAST_RECORD_BYTES = 0
    with launch.servers(
        num_ps=1, num_workers=workers, startup_timeout=200.0
    ) as servers:
        os.environ["TF_CONFIG"] = servers.tf_config.to_json()
        data = numbers(directory, are_in_files) if scenario == "before" else None
        exchange = tfdist.ExchangeEvery(4) if scenario == "every" else None
        strategy = tfdist.ParameterServerStrategy(
            startup_timeout=200.0, exchange=exchange
        )
        if scenario == "bytes":
            measure(strategy, servers, directory)
        else:
            data = numbers(directory, are_in_files) if data is None else data
            count(strategy, servers, data, scenario == "kill")


if __name__ == "__main__":
    main()
