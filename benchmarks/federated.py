"""Rounds of federated averaging to an accuracy, and what attackers do to each rule.

    python benchmarks/federated.py --json=benchmarks/measured/federated.json
    python benchmarks/federated.py --json=benchmarks/measured/federated.json --markdown

The data of `examples/federated_mnist.py`: 4,000 real images of MNIST on 50 clients, 1,000
to test on. Its CNN, with pooling in place of strides: as large, slower, and more accurate,
since the example's ends below 0.95. `--part=rounds` counts rounds to 0.95 for the local epochs E and
batch sizes B of McMahan et al. 2017, table 2, with a tenth of the clients in each round. As
there, each row has the learning rate that is best for it, found on the first seed; a rate
is given up once another one was faster.
`--part=attacks` has all clients in each of 20 rounds. Each run is written when it ends, and
none is repeated: an interrupted benchmark goes on where it was.
"""

import itertools
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import app, flags

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

import federated_mnist  # noqa: E402

from tfdist import federated  # noqa: E402

CLIENTS, FRACTION = 50, 0.1
SPLITS = ("iid", "shards")
# E and B, in the order of the paper: by the number of updates of a client in a round.
ROWS = ((1, None), (5, None), (1, 50), (20, None), (1, 10), (5, 50), (5, 10), (20, 10))
SHARES = (0.0, 0.1, 0.2, 0.4)
ATTACKS = ("sign_flip", "scaled", "little", "label_flip")
RULES = ("mean", "clipped", "median", "trimmed_mean", "geometric_median", "multi_krum")
Record = dict[str, Any]
FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_enum("part", "rounds", ["rounds", "attacks"], "What to measure.")
    flags.DEFINE_string("json", None, "Where runs are kept.", required=True)
    flags.DEFINE_bool("markdown", False, "Print the tables of the runs so far.")
    flags.DEFINE_integer("seeds", 3, "Repeats, each with another seed.", lower_bound=1)
    flags.DEFINE_list(
        "rates", ["0.1", "0.2", "0.05", "0.4"], "Learning rates to choose from."
    )
    flags.DEFINE_float("target", 0.95, "The test accuracy to reach.")
    flags.DEFINE_integer("limit", 2000, "The most rounds of a run.", lower_bound=1)
    flags.DEFINE_integer("attack_rounds", 20, "The rounds under attack.", lower_bound=1)


class StopAt(keras.callbacks.Callback):
    """Ends a run at an accuracy, or where training has diverged."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Notes whether this was the last round."""
        accuracy = (logs or {}).get("val_accuracy", 0.0)
        loss = (logs or {}).get("val_loss", 0.0)
        self.model.stop_training = accuracy >= self._target or not np.isfinite(loss)


def build_model() -> keras.Model:
    """Returns a CNN with 18,378 parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(federated_mnist.CLASSES),
        ]
    )


def run(
    averaging: federated.FederatedAveraging,
    split: str,
    rate: float,
    rounds: int,
    *,
    behavior: federated.ClientBehavior | None = None,
    flips: bool = False,
    target: float = 2.0,
    every: int = 1,
) -> dict[str, list[float]]:
    """Returns the logs of one run from fresh weights."""
    seed = averaging.seed
    keras.utils.set_random_seed(seed)
    (x, y), test = federated_mnist.load_data()
    make = {"iid": federated.iid, "shards": federated.label_shards}[split]
    parts = make(y, CLIENTS, seed=seed)
    if flips:
        rows = np.concatenate([parts[each] for each in behavior.attackers])
        y = y.copy()
        y[rows] = federated.label_flip(y[rows], federated_mnist.CLASSES)
    model = build_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    simulation = federated.Simulation(
        model, averaging, (x, y), parts, behavior=behavior
    )
    return simulation.run(
        rounds, validation_data=test, validation_freq=every, callbacks=[StopAt(target)]
    ).history


def rounds_runs(records: list[Record]) -> Iterator[Record]:
    """Yields the runs to a target that are not there yet."""
    for seed, split, (epochs, batch) in itertools.product(
        range(FLAGS.seeds), SPLITS, ROWS
    ):
        about = {"part": "rounds", "split": split, "epochs": epochs, "batch": batch}
        rates = [float(each) for each in FLAGS.rates] if seed == 0 else []
        rates = rates or [best_rate(records, about)]
        for rate in rates:
            key = {**about, "seed": seed, "rate": rate}
            if is_there(records, key):
                continue
            averaging = federated.FederatedAveraging(FRACTION, epochs, batch, seed=seed)
            # What a round costs decides how often it is worth an evaluation.
            every = 5 if (epochs, batch) == (1, None) else 1
            limit = FLAGS.limit
            if seed == 0:
                limit = min(limit, fewest_rounds(records, about) or limit)
            logs = run(averaging, split, rate, limit, target=FLAGS.target, every=every)
            reached = logs["val_accuracy"][-1] >= FLAGS.target
            rounds = len(logs["clients"]) if reached else None
            yield {**key, "rounds": rounds, "accuracy": max(logs["val_accuracy"])}


def attack_runs(records: list[Record]) -> Iterator[Record]:
    """Yields the runs under attack that are not there yet."""
    for seed, rule, attack, share in itertools.product(
        range(FLAGS.seeds), RULES, ATTACKS, SHARES
    ):
        attack = attack if share else "none"
        key = {"part": "attacks", "rule": rule, "attack": attack, "share": share}
        key["seed"] = seed
        if is_there(records, key):
            continue
        attackers = round(share * CLIENTS)
        averaging = federated.FederatedAveraging(
            local_epochs=1, batch_size=10, rule=rule_of(rule, attackers), seed=seed
        )
        behavior = federated.ClientBehavior(
            attackers=range(attackers), attack=attack_of(attack)
        )
        logs = run(
            averaging,
            "iid",
            0.1,
            FLAGS.attack_rounds,
            behavior=behavior,
            flips=attack == "label_flip",
            every=FLAGS.attack_rounds,
        )
        yield {**key, "accuracy": logs["val_accuracy"][-1]}


def rule_of(name: str, attackers: int) -> federated.Aggregation:
    """Returns a rule that expects as many attackers as there are."""
    return {
        "mean": federated.WeightedMean(),
        "clipped": federated.NormClipping(1.0),
        "median": federated.Median(attackers),
        "trimmed_mean": federated.TrimmedMean(attackers),
        "geometric_median": federated.GeometricMedian(attackers),
        "multi_krum": federated.MultiKrum(attackers),
    }[name]


def attack_of(name: str) -> federated.Attack | None:
    """Returns what attackers send; None where they train on poisoned data, or not at all."""
    return {
        "sign_flip": federated.SignFlip(10.0),
        "scaled": federated.ScaledUpdate(50.0),
        "little": federated.ALittleIsEnough(),
    }.get(name)


def is_there(records: list[Record], key: Record) -> bool:
    """Whether a run was recorded."""
    return any(key.items() <= each.items() for each in records)


def fewest_rounds(records: list[Record], about: Record) -> int | None:
    """Returns how soon a rate has reached the target on seed 0; None before one has."""
    found = [each for each in records if {**about, "seed": 0}.items() <= each.items()]
    return min((each["rounds"] for each in found if each["rounds"]), default=None)


def best_rate(records: list[Record], about: Record) -> float:
    """Returns the rate that reaches the target first on seed 0, or comes nearest to it."""
    found = [each for each in records if {**about, "seed": 0}.items() <= each.items()]
    best = min(found, key=lambda each: (each["rounds"] or np.inf, -each["accuracy"]))
    return best["rate"]


def rounds_table(records: list[Record]) -> str:
    """Returns the rounds to the target, as Markdown: means over seeds, with the range."""
    lines = ["| E | B | rate | IID | by shards |", "| --- | --- | --- | --- | --- |"]
    for epochs, batch in ROWS:
        cells, rates = [], []
        for split in SPLITS:
            about = {"part": "rounds", "split": split, "epochs": epochs, "batch": batch}
            found = [each for each in records if about.items() <= each.items()]
            if not found:
                cells.append("")
                continue
            rate = best_rate(records, about)
            rates.append(f"{rate:g}")
            cells.append(
                spread([each["rounds"] for each in found if each["rate"] == rate])
            )
        name = "all" if batch is None else str(batch)
        lines.append(
            f"| {epochs} | {name} | {', '.join(rates)} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def spread(rounds: list[int | None]) -> str:
    """Returns the mean and the range of rounds, if all runs reached the target."""
    reached = [each for each in rounds if each is not None]
    if len(reached) < len(rounds):
        return f"not reached in {len(rounds) - len(reached)} of {len(rounds)}"
    return f"{statistics.mean(reached):.0f} ({min(reached)} to {max(reached)})"


def attacks_table(records: list[Record]) -> str:
    """Returns the mean accuracy per rule, attack and share of attackers, as Markdown."""
    shares = [each for each in SHARES if each]
    heads = [f"{attack}, {share:.0%}" for attack in ATTACKS for share in shares]
    lines = [
        f"| rule | clean | {' | '.join(heads)} |",
        "| --- " * (len(heads) + 2) + "|",
    ]
    for rule in RULES:
        cells = [accuracy(records, rule, "none", 0.0)]
        cells += [accuracy(records, rule, each, s) for each in ATTACKS for s in shares]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def accuracy(records: list[Record], rule: str, attack: str, share: float) -> str:
    """Returns the mean accuracy of some runs under attack."""
    key = {"part": "attacks", "rule": rule, "attack": attack, "share": share}
    found = [each["accuracy"] for each in records if key.items() <= each.items()]
    return f"{statistics.mean(found):.3f}" if found else ""


def main(argv: list[str]) -> None:
    """Measures, or prints the tables."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    path = Path(FLAGS.json)
    records = json.loads(path.read_text()) if path.exists() else []
    if FLAGS.markdown:
        print(rounds_table(records), attacks_table(records), sep="\n\n")
        return
    runs = {"rounds": rounds_runs, "attacks": attack_runs}[FLAGS.part]
    for record in runs(records):
        records.append(record)
        path.write_text(json.dumps(records, indent=1) + "\n")
        print(record, flush=True)


if __name__ == "__main__":
    define_flags()
    app.run(main)
