"""The program of the speedup curves in docs/measured-speedup.md: an MLP learns a linear teacher.

    python -m launch.speedup --workers=1,2,4,8 --rate=200mbit --output=speedup.json \
        benchmarks/speedup_program.py

Ordinary Keras: it knows neither the number of workers nor the policy.
"""

import keras
import numpy as np
from absl import app, flags

import tfdist

FEATURES, CLASSES = 784, 10

flags.DEFINE_integer("units", 256, "Width of the two hidden layers.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Examples per step.", lower_bound=1)
flags.DEFINE_integer("steps", 160, "Steps per epoch.", lower_bound=1)
flags.DEFINE_integer("epochs", 5, "Epochs.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.05, "Of SGD.", lower_bound=0.0)


def main(argv: list[str]) -> None:
    """Trains."""
    del argv
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        hidden = [
            keras.layers.Dense(flags.FLAGS.units, activation="relu") for _ in range(2)
        ]
        model = keras.Sequential(
            [keras.Input((FEATURES,)), *hidden, keras.layers.Dense(CLASSES)]
        )
        model.compile(
            keras.optimizers.SGD(flags.FLAGS.learning_rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    random = np.random.default_rng(0)
    rows = flags.FLAGS.steps * flags.FLAGS.batch_size
    x = random.normal(size=(rows, FEATURES)).astype("float32")
    y = np.argmax(x @ random.normal(size=(FEATURES, CLASSES)), axis=1)
    model.fit(
        x, y, batch_size=flags.FLAGS.batch_size, epochs=flags.FLAGS.epochs, verbose=0
    )


if __name__ == "__main__":
    app.run(main)
