"""Kills a worker whose step has ended, just before the chief has the result: HOW."""

import contextlib
import os
import sys
import threading
import time

import keras
import numpy as np
import psutil
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl

import launch
import tfdist

STEPS, LOST = 40, 10
WORKERS_THREAD = "WorkerClosureProcessingLoop-1"


class Count(keras.Model):
    """One weight, which the sum of all steps changes."""

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight((1,), "zeros")
        self.built = True

    def call(self, x):
        return keras.ops.mean(x) * self.weight


def kill_before_copying(pid):
    """Kills a process when the result of one of its steps is about to be copied."""
    copy, copied = RemoteValueImpl._copy_to_local, []

    def copy_or_kill(self):
        if threading.current_thread().name == WORKERS_THREAD:
            copied.append(self)
            if len(copied) == LOST:
                process = psutil.Process(pid)
                process.kill()
                with contextlib.suppress(psutil.NoSuchProcess):
                    while process.status() != psutil.STATUS_ZOMBIE:
                        time.sleep(0.01)
                print("killed", flush=True)
        return copy(self)

    RemoteValueImpl._copy_to_local = copy_or_kill


def main():
    is_synchronous = sys.argv[1] == "rounds"
    consistency = tfdist.Synchronous() if is_synchronous else None
    with launch.servers(num_ps=1, num_workers=2, startup_timeout=200.0) as servers:
        os.environ["TF_CONFIG"] = servers.tf_config.to_json()
        strategy = tfdist.ParameterServerStrategy(consistency=consistency)
        with strategy.scope():
            model = Count()
            model.compile(keras.optimizers.SGD(1.0), lambda y, output: output)
        kill_before_copying(list(servers.pids.values())[-1])
        x = np.ones((STEPS, 1), "float32")
        model.fit(x, x, batch_size=1, epochs=2, verbose=0)
        steps = -float(model.weight.numpy()[0])
    if is_synchronous:
        assert steps == STEPS, steps  # Rounds of two batches.
    else:
        # The lost result is of a step that has written its gradient: it runs again.
        assert 2 * STEPS <= steps <= 2 * STEPS + 2, steps
    print("trained on")


if __name__ == "__main__":
    main()
