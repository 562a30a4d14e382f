"""The chief of a cluster that benchmarks/secure.py measures: DIRECTORY STEPS BYTES.

It measures what the file `go-N` in the directory names, and writes the figure into
`done-N`. A file `over` ends it.
"""

import os
import statistics
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from workload import Workload

import tfdist

_READS, _TRIPS = 5, 200
_MB = 1e6

directory, steps, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
workload = Workload("cnn", 64, steps, 1, 1)
strategy = tfdist.ParameterServerStrategy()
with strategy.scope():
    model = workload.build(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
with tf.device("/job:ps/task:0/device:CPU:0"):
    large = tf.Variable(np.zeros(size // 4, "float32"))
    scalar = tf.Variable(0.0)
images, labels = workload.epoch()
data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(workload.batch_size)


def seconds(function) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def trip() -> None:
    scalar.read_value().numpy()


def read() -> None:
    with tf.device("/job:chief/task:0/device:CPU:0"):
        tf.identity(large.read_value()).numpy()


def steps_per_second() -> float:
    return steps / seconds(lambda: model.fit(data, epochs=1, verbose=0))


def mb_per_second() -> float:
    return size / _MB / statistics.median(seconds(read) for _ in range(_READS))


def milliseconds() -> float:
    return 1e3 * statistics.median(seconds(trip) for _ in range(_TRIPS))


measures = {"fit": steps_per_second, "read": mb_per_second, "trip": milliseconds}
for measure in measures.values():
    measure()  # Traces, and connects everything.
(directory / "ready").touch()
number = 0
while not (directory / "over").exists():
    asked = directory / f"go-{number}"
    if not asked.exists():
        time.sleep(0.01)
        continue
    (directory / "part").write_text(str(measures[asked.read_text()]()))
    os.replace(directory / "part", directory / f"done-{number}")
    number += 1
