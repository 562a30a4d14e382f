"""The chief of cached_reads.py, which runs on its own host.

It reads requests from its standard input, one line of JSON each, and answers each with a
line. `prepare` makes a model and trains one epoch; `train` trains the others; `loss` returns
the validation loss and what the exchange reports.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

import mnist_5k  # noqa: E402
import mnist_cnn  # noqa: E402
import zipf_ratings  # noqa: E402

import tfdist  # noqa: E402

# A quarter of MovieLens 1M: 166 ratings of each user, and as many items to a user.
USERS, ITEMS, RATINGS, DIM = 1_510, 926, 250_000, 64
BATCH = {"cnn": 64, "recommender": 128}
layers = keras.layers


class Bench:
    """A model at a time, under one exchange after the other."""

    def __init__(self) -> None:
        self._strategy = tfdist.ParameterServerStrategy()
        self._data: dict[str, Any] = {"cnn": digits(), "recommender": ratings()}

    def prepare(
        self,
        model: str,
        exchange: dict[str, Any],
        seed: int,
        epochs: int,
        falling: bool,
    ) -> dict[str, Any]:
        """Makes the model, and trains one of its epochs, in which it is traced."""
        self._strategy.exchange = exchange_of(**exchange)
        keras.utils.set_random_seed(seed)
        self._train, self._validation = self._data[model]
        self._batch_size = BATCH[model]
        steps = epochs * -(-len(self._train[0]) // self._batch_size)
        with self._strategy.scope():
            self._model = MODELS[model](steps if falling else None)
        self._fit(1)
        return {}

    def train(self, epochs: int) -> dict[str, Any]:
        """Trains, and returns how many steps that were."""
        before = int(self._model.optimizer.iterations)
        self._fit(epochs)
        return {"steps": int(self._model.optimizer.iterations) - before}

    def loss(self) -> dict[str, Any]:
        """Returns the validation loss."""
        loss = self._model.evaluate(*self._validation, batch_size=512, verbose=0)
        return {"loss": float(loss)}

    def _fit(self, epochs: int) -> None:
        self._model.fit(
            *self._train, batch_size=self._batch_size, epochs=epochs, verbose=0
        )


def exchange_of(kind: str, number: float, max_age: int = 100) -> Any:
    """Returns `Every(number)` or `WhenChanged(number, max_age)`."""
    if kind in ("every", "again"):
        return tfdist.Every(int(number))
    return tfdist.WhenChanged(number, max_age)


def falling(rate: float, steps: int | None) -> Any:
    """Returns a rate that falls to 0 in so many steps, if it falls at all."""
    if steps is None:
        return rate
    return keras.optimizers.schedules.CosineDecay(rate, steps)


def build_cnn(steps: int | None) -> keras.Model:
    """Returns the CNN of examples/mnist_cnn.py."""
    model = mnist_cnn.build_model()
    model.compile(
        keras.optimizers.SGD(falling(0.05, steps)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def build_recommender(steps: int | None) -> keras.Model:
    """Returns a model of a user's stars for an item."""
    pair = keras.Input((2,), dtype="int32")
    user = tfdist.Embedding(USERS, DIM)(pair[:, 0])
    item = tfdist.Embedding(ITEMS, DIM)(pair[:, 1])
    both = layers.Concatenate()([user, item, layers.Multiply()([user, item])])
    hidden = layers.Dense(64, activation="relu")(both)
    start = keras.initializers.Constant(zipf_ratings.MEAN)
    model = keras.Model(pair, layers.Dense(1, bias_initializer=start)(hidden))
    model.compile(keras.optimizers.Adagrad(falling(0.05, steps)), "mse")
    return model


MODELS = {"cnn": build_cnn, "recommender": build_recommender}


def digits() -> tuple[Any, Any]:
    """Returns the 5,000 images, to train and to validate."""
    builder = mnist_5k.Mnist5k()
    builder.download_and_prepare()
    splits = (
        builder.as_dataset(split=split, as_supervised=True, batch_size=-1)
        for split in ("train", "test")
    )
    train, test = (tuple(each.numpy() for each in split) for split in splits)
    return train, test


def ratings() -> tuple[Any, Any]:
    """Returns ratings of popular items, mostly, to train and to validate."""
    generated = zipf_ratings.ZipfRatings(num_items=ITEMS, num_users=USERS)
    number = RATINGS + 25_000
    features, stars = next(generated.batches(number, 0).take(1).as_numpy_iterator())
    x = np.stack([features["user"], features["item"]], axis=1).astype("int32")
    return (x[:RATINGS], stars[:RATINGS]), (x[RATINGS:], stars[RATINGS:])


def main() -> None:
    """Answers requests until its input ends."""
    # Answers alone go to the standard output, whatever else is printed.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bench = Bench()
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(bench, request.pop("do"))(**request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
