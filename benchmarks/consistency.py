"""What a policy of consistency costs, with workers that are equal, slow, or stopped.

    python -m launch.local --num_ps=2 --num_workers=4 benchmarks/consistency.py
    ... benchmarks/consistency.py --part=accuracy   # seconds to a test accuracy of 0.95
    ... benchmarks/consistency.py --part=bound      # that no step of very many exceeds it

    ... benchmarks/consistency.py --model=recommender   # rates with sparse gradients

Runs on the chief. Policies take turns in one cluster, on the MNIST CNN or, for rates, on a
recommender whose tables are in shards on the ps. Worker 0 is slowed down by signals: it must
run on this machine.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import app, flags
from results import Spread
from slow_worker import Condition, held_up

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

import mnist_5k  # noqa: E402
import mnist_cnn  # noqa: E402

import tfdist  # noqa: E402

BATCH = 64
TARGET = 0.95
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
    flags.DEFINE_enum("part", "rates", list(PARTS), "What to measure.")
    flags.DEFINE_enum("model", "cnn", list(MODELS), "Whose rates to measure.")
    flags.DEFINE_integer("rounds", 5, "Runs under each policy.", lower_bound=1)
    flags.DEFINE_integer("passes", 3, "Epochs of each run, of 62 steps.", lower_bound=1)
    flags.DEFINE_float("rate", 0.05, "The learning rate of the CNN.")
    flags.DEFINE_float("seconds", 60.0, "The longest run to the accuracy.")
    flags.DEFINE_integer("steps", 20_000, "Of each bound.", lower_bound=1)
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

    def __init__(self, strategy: Any, data: Any) -> None:
        self._strategy = strategy
        build, make_data = MODELS[FLAGS.model]
        self._train = make_data() if make_data else data[0]
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
    model = mnist_cnn.build_model()
    compile_model(model)
    return model


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


# How to build each, and its data; None for the images.
MODELS: dict[str, tuple[Callable[[], keras.Model], Any]] = {
    "cnn": (build_cnn, None),
    "recommender": (build_recommender, make_ratings),
}


def compile_model(model: keras.Model) -> None:
    model.compile(
        keras.optimizers.SGD(FLAGS.rate, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def measure_rates(strategy: Any, data: Any) -> None:
    rates = Rates(strategy, data)
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


def table(condition: Condition, found: dict[str, list[Measurement]]) -> str:
    """Returns the medians as Markdown."""
    first = next(iter(found))
    lines = [
        f"| worker 0 {condition.name} | steps/s | / {first} | waited | staleness | max |",
        "| --- " * 6 + "|",
    ]
    for name, runs in found.items():
        rate = Spread.of(each.steps_per_second for each in runs)
        ratio = Spread.of(
            each.steps_per_second / base.steps_per_second
            for each, base in zip(runs, found[first], strict=True)
        )
        waited = Spread.of(100 * each.waiting_share for each in runs)
        staleness = Spread.of(each.staleness for each in runs)
        most = max(each.max_staleness for each in runs)
        lines.append(
            f"| {name} | {rate.median:.0f} | {ratio} | {waited.median:.1f}% | "
            f"{staleness.median:.2f} | {most} |"
        )
    return "\n".join(lines)


def measure_accuracy(strategy: Any, data: Any) -> None:
    """Prints how long each policy takes to the target, from the same weights."""
    train, test = data
    for condition in CONDITIONS:
        if condition.name not in FLAGS.conditions:
            continue
        for seed in range(FLAGS.rounds):
            for name in FLAGS.policies:
                keras.utils.set_random_seed(seed)
                strategy.consistency = policy_of(name)
                with strategy.scope():
                    model = build_cnn()
                model.train_on_batch(train[0][:BATCH], train[1][:BATCH])  # Traced.
                spent, accuracy, epochs = 0.0, 0.0, 0
                while accuracy < TARGET and spent < FLAGS.seconds:
                    start = time.monotonic()
                    with held_up(condition):
                        model.fit(*train, batch_size=BATCH, verbose=0)
                    spent += time.monotonic() - start
                    epochs += 1
                    results = model.evaluate(*test, batch_size=500, verbose=0)
                    accuracy = results[1]
                print(
                    f"{condition.name}, {name}, seed {seed}: accuracy {accuracy:.3f} after "
                    f"{epochs} epochs and {spent:.1f} s of training",
                    flush=True,
                )


def count_steps(strategy: Any, data: Any) -> None:
    """Prints the largest staleness of very many short steps under each bound."""
    x, y = data[0]
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Flatten(), keras.layers.Dense(16, "relu")]
            + [keras.layers.Dense(10)]
        )
        compile_model(model)
    print(
        "| bound | steps | staleness | max | waited |\n| --- | --- | --- | --- | --- |"
    )
    for name in FLAGS.policies:
        if not name.isdecimal():
            continue
        strategy.consistency = policy_of(name)
        before = strategy.gates.report()
        epochs = -(-FLAGS.steps * BATCH // len(x))
        model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)
        report = strategy.staleness_report()
        report = report if before is None else report.since(before)
        print(
            f"| {name} | {report.steps} | {report.mean:.2f} | {report.maximum} | "
            f"{report.waiting_share:.1%} |",
            flush=True,
        )


PARTS = {"rates": measure_rates, "accuracy": measure_accuracy, "bound": count_steps}


def main(argv: list[str]) -> None:
    del argv
    strategy = tfdist.ParameterServerStrategy(consistency=tfdist.Asynchronous())
    builder = mnist_5k.Mnist5k()
    builder.download_and_prepare()
    splits = [
        builder.as_dataset(split=split, as_supervised=True, batch_size=-1)
        for split in ("train", "test")
    ]
    data = [[each.numpy() for each in split] for split in splits]
    PARTS[FLAGS.part](strategy, data)


if __name__ == "__main__":
    define_flags()
    app.run(main)
