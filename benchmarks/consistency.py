"""What a policy of consistency costs, with workers that are equal, slow, or stopped.

    python -m launch.local --num_ps=2 --num_workers=4 benchmarks/consistency.py
    ... benchmarks/consistency.py --model=recommender   # with sparse gradients

Runs on the chief. Policies take turns in one cluster, on the MNIST CNN or on a
recommender whose tables are in shards on the ps. Worker 0 is slowed down by signals: it must
run on this machine.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pages
from absl import app, flags
from slow_worker import Condition, held_up
from turns import Spread

sys.path.append(str(pages.ROOT / "examples"))

import mnist_5k  # noqa: E402
import mnist_cnn  # noqa: E402

import tfdist  # noqa: E402

BATCH = 64
USERS, ITEMS, RATINGS = 6040, 3706, 16_000
BASELINE = "not measured"
FLAGS = flags.FLAGS


CONDITIONS = (
    Condition("healthy", 0.0, 0.0),
    Condition("3x slower", 0.02, 0.04),
    Condition("stopped for a tenth", 4.5, 0.5),
)


class Measurement(NamedTuple):
    """What one run has shown."""

    steps_per_second: float
    waiting_share: float
    staleness: float
    max_staleness: int


def define_flags() -> None:
    flags.DEFINE_enum("model", "cnn", list(MODELS), "Whose rates to measure.")
    flags.DEFINE_integer("rounds", 5, "Runs under each policy.", lower_bound=1)
    flags.DEFINE_integer("passes", 3, "Epochs of each run, of 62 steps.", lower_bound=1)
    flags.DEFINE_float("rate", 0.05, "The learning rate of the CNN.")
    flags.DEFINE_list(
        "policies",
        [BASELINE, "asynchronous", "inf", "16", "8", "4", "2", "1", "0", "synchronous"],
        "Bounds, and the names of policies.",
    )
    flags.DEFINE_list("conditions", [each.name for each in CONDITIONS], "Of worker 0.")


def policy_of(name: str) -> Any:
    """Returns the policy of this name."""
    if name in (BASELINE, "asynchronous"):
        return tfdist.Asynchronous()
    if name.startswith("synchronous"):
        backups = name.partition("+")[2] or "0"
        return tfdist.Synchronous(int(backups))
    return tfdist.BoundedStaleness(float(name) if name == "inf" else int(name))


class Rates:
    """Steps per second under each policy, with one model."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        build, make_data = MODELS[FLAGS.model]
        self._train = make_data()
        with strategy.scope():
            self._model = build()

    def measure(self, name: str, epochs: int) -> Measurement:
        """Trains for some epochs under a policy."""
        strategy = self._strategy
        strategy.consistency = policy_of(name)
        strategy._measures = name != BASELINE
        before = strategy.gates.report()
        start = time.monotonic()
        history = self._model.fit(
            *self._train, batch_size=BATCH, epochs=epochs, verbose=0
        )
        seconds = time.monotonic() - start
        rate = epochs * len(self._train[0]) / BATCH / seconds
        if before is None or "staleness" not in history.history:
            return Measurement(rate, 0.0, 0.0, 0)
        report = strategy.staleness_report().since(before)
        return Measurement(rate, report.waiting_share, report.mean, report.maximum)


def build_cnn() -> keras.Model:
    """Returns the CNN of the example, compiled."""
    model = mnist_cnn.build_model()
    model.compile(
        keras.optimizers.SGD(FLAGS.rate, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def load_images() -> list[np.ndarray]:
    """Returns 4,000 images of MNIST, and their labels."""
    builder = mnist_5k.Mnist5k()
    builder.download_and_prepare()
    split = builder.as_dataset(split="train", as_supervised=True, batch_size=-1)
    return [each.numpy() for each in split]


def build_recommender() -> keras.Model:
    """Returns a compiled model of the stars that a user, (batch, 2), gives an item."""
    ids = keras.Input((2,), dtype="int32")
    vectors = [
        tfdist.Embedding(rows, 16)(ids[:, column])
        for column, rows in enumerate((USERS, ITEMS))
    ]
    model = keras.Model(ids, keras.layers.Dot(axes=1)(vectors))
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return model


def make_ratings() -> tuple[np.ndarray, np.ndarray]:
    """Returns ratings of popular items, mostly, by users at random."""
    random = np.random.default_rng(0)
    items = np.minimum(random.zipf(1.2, RATINGS), ITEMS) - 1
    users = random.integers(0, USERS, RATINGS)
    stars = random.integers(1, 6, (RATINGS, 1)).astype("float32")
    return np.stack([users, items], axis=1).astype("int32"), stars


# How to build each, and its data.
MODELS: dict[str, tuple[Callable[[], keras.Model], Callable[[], Any]]] = {
    "cnn": (build_cnn, load_images),
    "recommender": (build_recommender, make_ratings),
}


def table(condition: Condition, found: dict[str, list[Measurement]]) -> str:
    """Returns the medians as Markdown."""
    first = next(iter(found))
    rows = []
    for name, runs in found.items():
        rates, base = (
            [each.steps_per_second for each in found[of]] for of in (name, first)
        )
        waited = Spread.of(100 * each.waiting_share for each in runs)
        staleness = Spread.of(each.staleness for each in runs)
        rows.append(
            [
                name,
                f"{Spread.of(rates).median:.0f}",
                Spread.of_ratios(rates, base),
                f"{waited.median:.1f}%",
                f"{staleness.median:.2f}",
                max(each.max_staleness for each in runs),
            ]
        )
    heads = [f"worker 0 {condition.name}", "steps/s", f"/ {first}", "waited"]
    return pages.table([*heads, "staleness", "max"], rows)


def main(argv: list[str]) -> None:
    """Measures all policies in turns, under each condition."""
    del argv
    rates = Rates(tfdist.ParameterServerStrategy(consistency=tfdist.Asynchronous()))
    for name in FLAGS.policies:  # Traced, and the gates made.
        rates.measure(name, 1)
    for condition in CONDITIONS:
        if condition.name not in FLAGS.conditions:
            continue
        found: dict[str, list[Measurement]] = {name: [] for name in FLAGS.policies}
        for _ in range(FLAGS.rounds):
            for name in FLAGS.policies:
                with held_up(condition):
                    found[name].append(rates.measure(name, FLAGS.passes))
                print(condition.name, name, found[name][-1], flush=True)
        print(table(condition, found), flush=True)


if __name__ == "__main__":
    define_flags()
    app.run(main)
