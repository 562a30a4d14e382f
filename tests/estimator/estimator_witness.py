"""Run examples/mnist_estimator.py, whose folder PYTHONPATH names, and record its tasks.

Each task that trains leaves a file `<task>.json` in the directory of the environment
variable WITNESS_DIR: its steps, the devices that held its variables, and the last value
of one of them.
"""

import functools
import json
import os
import time
from pathlib import Path

import mnist_estimator
import tensorflow as tf
from absl import app

from tf_config import TFConfig
from tfdist import estimator


class Witness(estimator.SessionRunHook):
    """Counts the steps of this task, and records the device of each variable."""

    def __init__(self):
        self.steps = 0
        self.devices = {}
        self.value = None

    def begin(self):
        self.bias = tf.compat.v1.global_variables("dense/bias")[0]

    def after_create_session(self, session, coord):
        """Wait for the others: a late task would find no work left."""
        config = TFConfig.from_environment()
        mine, cluster = Path(os.environ["WITNESS_DIR"]), config.cluster
        (mine / f"{config.task}.ready").touch()
        deadline = time.monotonic() + 200
        while len([*mine.glob("*.ready")]) < len(cluster.chief + cluster.worker):
            assert time.monotonic() < deadline, "the others are not there"
            time.sleep(0.1)

    def before_run(self, run_context):
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        return estimator.SessionRunArgs(
            self.bias, options=options if self.steps == 0 else None
        )

    def after_run(self, run_context, run_values):
        self.steps += 1
        self.value = run_values.results.tolist()
        for graph in run_values.run_metadata.partition_graphs:
            self.devices.update(
                (n.name, n.device) for n in graph.node if n.op == "VarHandleOp"
            )

    def end(self, session):
        task = TFConfig.from_environment().task
        report = {
            "steps": self.steps,
            "devices": self.devices,
            "value": self.value,
            "step": int(session.run(tf.compat.v1.train.get_global_step())),
        }
        path = Path(os.environ["WITNESS_DIR"], f"{task.job}-{task.index}.json")
        path.write_text(json.dumps(report))


if __name__ == "__main__":
    spec = functools.partial(estimator.TrainSpec, hooks=[Witness()])
    mnist_estimator.estimator.TrainSpec = spec
    app.run(mnist_estimator.main)
