"""The program of local_updates.py: a CNN on the images of examples/local_sgd.py.

It adds to the example's flags what a measurement needs: synchronous training, validation
only where models have just been mixed, and workers that begin apart and do not train. The
CNN has more weights than the example's, and takes a tenth of its computation: four
workers share the cores of one machine, but each has a link of its own.
"""

import sys
from pathlib import Path

import keras
import numpy as np
from absl import app, flags

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import local_sgd  # noqa: E402

import tf_config  # noqa: E402
import tfdist  # noqa: E402

STEPS_PER_EPOCH = 50  # 4,000 images, 80 at a time

FLAGS = flags.FLAGS
flags.DEFINE_bool("synchronous", False, "Exchange gradients in each step instead.")
flags.DEFINE_string(
    "apart",
    None,
    "Begin with different models, do not train, and write each worker's model after "
    "each mix into this directory.",
)


class StayApart(keras.callbacks.Callback):
    """Sets this worker's model to a random one, and keeps it after each mix.

    Args:
        seed: Of the random model.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self.models: list[np.ndarray] = []

    def on_train_batch_begin(self, batch, logs=None) -> None:
        """Begins apart: before this, all have the chief's model."""
        if self.models:
            return
        random = np.random.default_rng(self._seed)
        values = [random.normal(size=each.shape) for each in self.model.weights]
        self.model.set_weights(values)
        self._keep()

    def on_train_batch_end(self, batch, logs=None) -> None:
        """Keeps the model that the mix has left."""
        self._keep()

    def _keep(self) -> None:
        weights = [np.ravel(each) for each in self.model.get_weights()]
        self.models.append(np.concatenate(weights))


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
    if FLAGS.apart:
        return keras.optimizers.SGD(0.0)
    steps = FLAGS.epochs * STEPS_PER_EPOCH
    rate = keras.optimizers.schedules.CosineDecay(FLAGS.learning_rate, steps)
    return keras.optimizers.AdamW(rate)


def main(argv: list[str]) -> None:
    """Trains, or only mixes."""
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
    if FLAGS.apart:
        mix_only(model, x, y, tf_config.TFConfig.from_environment().task.index)
        return
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


def mix_only(model: keras.Model, x: np.ndarray, y: np.ndarray, index: int) -> None:
    """Mixes models that begin apart, `--epochs` times, and writes them."""
    kept = StayApart(seed=index)
    rows = slice(FLAGS.epochs * FLAGS.batch_size)
    model.fit(x[rows], y[rows], FLAGS.batch_size, verbose=0, callbacks=[kept])
    np.save(Path(FLAGS.apart, f"{index}.npy"), np.stack(kept.models))


if __name__ == "__main__":
    app.run(main)
