"""The program of local_updates.py: a CNN on the images of examples/local_sgd.py.

It adds to the example's flags what a measurement needs: synchronous training, and
validation only where models have just been mixed. The CNN has more weights than the
example's, and takes a tenth of its computation, because four workers share the cores of
one machine, but each has a link of its own.
"""

import sys
from pathlib import Path

import keras
from absl import app, flags

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import local_sgd  # noqa: E402

import tfdist  # noqa: E402

STEPS_PER_EPOCH = 50  # 4,000 images, 80 at a time

FLAGS = flags.FLAGS
flags.DEFINE_bool("synchronous", False, "Exchange gradients in each step instead.")


def make_strategy():
    """Returns the strategy that the flags describe."""
    if FLAGS.synchronous:
        return tfdist.MultiWorkerMirroredStrategy()
    return local_sgd.make_strategy()


def build_model() -> keras.Model:
    """Returns a CNN with 80,202 parameters, from images to the logits of 10 digits."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 5, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def make_optimizer() -> keras.optimizers.Optimizer:
    """Returns AdamW with a rate that falls to 0, as DiLoCo's authors take it."""
    steps = FLAGS.epochs * STEPS_PER_EPOCH
    rate = keras.optimizers.schedules.CosineDecay(FLAGS.learning_rate, steps)
    return keras.optimizers.AdamW(rate)


def main(argv: list[str]) -> None:
    """Trains."""
    del argv
    strategy = make_strategy()
    keras.utils.set_random_seed(FLAGS.seed)
    (x, y), test = local_sgd.load_data()
    with strategy.scope():
        model = build_model()
        model.compile(
            make_optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    every = 1 if FLAGS.synchronous else max(1, FLAGS.local_steps // STEPS_PER_EPOCH)
    model.fit(
        x,
        y,
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        validation_data=test,
        validation_batch_size=len(test[1]),
        validation_freq=every,
        verbose=0,
    )


if __name__ == "__main__":
    app.run(main)
