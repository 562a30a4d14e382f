"""Train where each CPU of a worker counts as a GPU would: POLICY, DATA and FAULT."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import psutil
import tensorflow as tf

import tfdist
from tf_config import Task, TFConfig
from tfdist.parameter_server.seam import replicas

policy, data, fault = sys.argv[1:]
POLICIES = {
    "bounded": tfdist.BoundedStaleness(2),
    "rounds": tfdist.Synchronous(),
    "backups": tfdist.Synchronous(1),
}
EXCHANGES = {"exchange": tfdist.ExchangeEvery(5), "changed": tfdist.WhenChanged(2.0, 9)}
STEPS, EPOCHS, BATCH = 300, 2, 4
replicas.KIND = os.environ.get("TEST_DEVICES", "CPU")
# Each worker's log tells where it runs each operation.
tf.debugging.set_log_device_placement(True)
strategy = tfdist.ParameterServerStrategy(
    consistency=POLICIES.get(policy),
    exchange=EXCHANGES.get(policy),
    startup_timeout=200,
)
with strategy.scope():
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    # Its gradient is 1, so that the weight counts the updates.
    model.compile(keras.optimizers.SGD(1.0), lambda y, out: out - y)


class Fault(keras.callbacks.Callback):
    is_over = fault == "none"
    restarted = None

    def on_train_batch_end(self, batch, logs=None):
        if batch > 50 and not self.is_over:
            self.is_over = True
            end_worker()
            if fault == "restart":
                self.restarted = start_worker()


def end_worker():
    port = int(TFConfig.from_environment().cluster.worker[0].rpartition(":")[2])
    for each in psutil.net_connections("tcp"):
        if each.status == "LISTEN" and each.laddr.port == port:
            os.kill(each.pid, signal.SIGKILL)
            psutil.Process(each.pid).wait()


def start_worker():
    config = TFConfig(TFConfig.from_environment().cluster, Task("worker", 0))
    server = Path(__file__).with_name("server_with_devices.py")
    return subprocess.Popen(
        [sys.executable, server, "2"],
        env={**os.environ, "TF_CONFIG": config.to_json()},
        stdout=subprocess.DEVNULL,
    )


def counts():
    """The steps of each device, as counted there."""
    try:
        return strategy.step_counter.counts()
    except tf.errors.OpError:
        return ()


watch = Fault()
x = np.ones((BATCH * STEPS, 1), "float32")
y = np.zeros_like(x)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
try:
    asked = 0
    # A busy machine may have given all steps to some of them.
    while not (asked and (fault == "killed" or min(counts(), default=0))):
        options = {"epochs": EPOCHS, "verbose": 0, "callbacks": [watch]}
        if data == "endless":
            model.fit(dataset.repeat(), steps_per_epoch=STEPS, **options)
        else:
            model.fit(dataset, **options)
        asked += EPOCHS * STEPS
    weight = float(dense.kernel.numpy()[0, 0])
    numbers = np.arange(100, dtype="float32")[:, None]
    predicted = model.predict(numbers, batch_size=3, verbose=0)
    report = strategy.staleness_report() if strategy.gate else None
    result = {
        "replicas": [each.name for each in strategy.replicas],
        "asked": asked,
        "iterations": int(model.optimizer.iterations),
        "weight": weight,
        "counts": counts(),
        "workers": strategy.worker_report().steps if fault != "killed" else (),
        "in_order": bool(np.allclose(predicted, weight * numbers)),
        "evaluated": model.evaluate(dataset, verbose=0),
        "staleness": report and report.maximum,
        "reported": report and report.counts.sum(axis=1).tolist(),
        "table": str(report),
        "in_sync": strategy.num_replicas_in_sync,
        "trace": strategy.extended.worker_devices,
    }
    print("result", json.dumps(result), flush=True)
finally:
    if watch.restarted:
        watch.restarted.kill()
        watch.restarted.wait()
