"""Trains a small Keras model under one of the toy strategies, and writes what it saw."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import keras
import numpy as np
from in_unison import InUnison
from local_steps import LocalSteps
from on_ps import OnPS

STRATEGIES = {"on_ps": OnPS, "in_unison": InUnison, "local_steps": LocalSteps}


def main(name, directory):
    strategy = STRATEGIES[name]()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(256, 4)).astype("float32")
    y = (x @ [[1.0], [-2.0], [3.0], [0.5]]).astype("float32")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=32, epochs=8, shuffle=False, verbose=0)
    found = {
        "weights": [weight.numpy().ravel().tolist() for weight in model.weights],
        "proof": strategy.proof(),
    }
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    path = Path(directory, f"{task['type']}-{task['index']}.json")
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
