"""A federation of 6 clients: DIRECTORY ROUNDS [kill INDEX], on workers or by itself.

Writes what each worker knows at the end. With `kill`, that worker is killed in round 3.
"""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

from tfdist.research import federated

directory, rounds, *kill = sys.argv[1:]
tf_config = json.loads(os.environ.get("TF_CONFIG", "null"))
index = tf_config["task"]["index"] if tf_config else 0
victim = int(kill[1]) if kill else None


def examples_of(client):
    if index == victim and simulation.server.round_index == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return X[10 * client : 10 * client + 10], Y[10 * client : 10 * client + 10]


X = np.random.RandomState(0).rand(60, 4).astype("float32")
Y = X @ np.float32([1, -2, 3, 1])
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
simulation = federated.Simulation(
    model,
    federated.FederatedAveraging(
        batch_size=5, server_optimizer=federated.FedAvgM(1.0, momentum=0.5)
    ),
    examples_of,
    6,
    workers=federated.Workers(startup_timeout=400.0) if tf_config else None,
    checkpoint_dir=f"{directory}/checkpoint",
)
history = simulation.run(int(rounds), validation_data=(X, Y)).history
found = {
    "weights": simulation.server.weights.tolist(),
    "steps": simulation.training.steps,
    "answered": history.get("answered"),
}
Path(directory, f"{index}.json").write_text(json.dumps(found))
