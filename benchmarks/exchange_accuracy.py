"""What `exchange=Every(k)` does to the result of training, after equal numbers of steps.

    python -m launch.local --num_ps=2 --num_workers=2 benchmarks/exchange_accuracy.py
    ... benchmarks/exchange_accuracy.py --markdown   # into docs/parameter-servers.md

Runs on the chief. For each seed, the same model is trained with each k in turn, from the
same weights, on the same shuffled examples.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from results import Spread

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

import mnist_5k  # noqa: E402
import mnist_cnn  # noqa: E402
import zipf_ratings  # noqa: E402

import tfdist  # noqa: E402

PAGE = ROOT / "docs" / "parameter-servers.md"
BEGIN, END = "<!-- exchange:begin -->", "<!-- exchange:end -->"
EXCHANGES = (1, 5, 13)
BATCH, EPOCHS = 64, 6
RATINGS, ITEMS, DIM = 64 * 600, 2_000, 8
layers = keras.layers

FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_integer("seeds", 5, "Runs with each k.", lower_bound=5)
    flags.DEFINE_bool("markdown", False, "Write the table into the page.")


class Workload(NamedTuple):
    """What to train, on what, and what to report of the validation."""

    name: str
    build: Any
    optimizer: Any
    loss: Any
    train: tuple[Any, Any]
    validation: tuple[Any, Any]


def workloads() -> Iterator[Workload]:
    """Yields the MNIST CNN with two optimizers, and a recommender of two towers."""
    builder = mnist_5k.Mnist5k()
    builder.download_and_prepare()
    splits = [
        builder.as_dataset(split=split, as_supervised=True, batch_size=-1)
        for split in ("train", "test")
    ]
    train, test = ([each.numpy() for each in split] for split in splits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizers = {
        "SGD(0.05)": lambda: keras.optimizers.SGD(0.05),
        "Adam(0.001)": lambda: keras.optimizers.Adam(0.001),
    }
    for name, optimizer in optimizers.items():
        yield Workload(
            f"MNIST CNN, `{name}`", mnist_cnn.build_model, optimizer, loss, train, test
        )
    ratings = zipf_ratings.ZipfRatings(num_items=ITEMS)
    batches = ratings.batches(RATINGS + 4096, 0).take(1)
    features, stars = next(batches.as_numpy_iterator())
    x = np.stack([features["user"], features["item"]], axis=1)
    yield Workload(
        "recommender, `Adagrad(0.1)`",
        lambda: two_towers(ratings.num_users),
        lambda: keras.optimizers.Adagrad(0.1),
        "mse",
        (x[:RATINGS], stars[:RATINGS]),
        (x[RATINGS:], stars[RATINGS:]),
    )


def two_towers(users: int) -> keras.Model:
    """Returns a model of a user's stars for an item, whose tables are looked up whole."""
    pair = keras.Input((2,), dtype="int64")
    user = layers.Embedding(users, DIM)(pair[:, 0])
    item = layers.Embedding(ITEMS, DIM)(pair[:, 1])
    both = layers.Concatenate()([user, item, layers.Multiply()([user, item])])
    hidden = layers.Dense(32, activation="relu")(both)
    return keras.Model(pair, layers.Dense(1, bias_initializer=_three)(hidden))


def _three(shape: Any, dtype: Any = None) -> tf.Tensor:
    return tf.fill(shape, tf.constant(3.0, dtype))


def loss_after(strategy: Any, workload: Workload, exchange: int, seed: int) -> float:
    """Returns the loss of the validation after training."""
    strategy.exchange = tfdist.Every(exchange)
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = workload.build()
        model.compile(
            workload.optimizer(), workload.loss, steps_per_execution=EXCHANGES[-1]
        )
    model.fit(*workload.train, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return float(model.evaluate(*workload.validation, batch_size=512, verbose=0))


def main(argv: list[str]) -> None:
    del argv
    strategy = tfdist.ParameterServerStrategy()
    lines = [
        "| validation loss | "
        + " | ".join(f"`Every({k})`" for k in EXCHANGES)
        + " | "
        + " | ".join(f"`Every({k})` / `Every(1)`" for k in EXCHANGES[1:])
        + " |",
        "| --- " * (2 * len(EXCHANGES)) + "|",
    ]
    for workload in workloads():
        losses: dict[int, list[float]] = {k: [] for k in EXCHANGES}
        for seed in range(FLAGS.seeds):
            for k in EXCHANGES:
                losses[k].append(loss_after(strategy, workload, k, seed))
                print(workload.name, seed, k, losses[k][-1], flush=True)
        medians = [f"{Spread.of(losses[k]).median:.4f}" for k in EXCHANGES]
        ratios = [
            str(
                Spread.of(
                    merged / each
                    for merged, each in zip(losses[k], losses[1], strict=True)
                )
            )
            for k in EXCHANGES[1:]
        ]
        lines.append(f"| {' | '.join([workload.name, *medians, *ratios])} |")
    table = "\n".join(lines)
    print(table)
    if FLAGS.markdown:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
