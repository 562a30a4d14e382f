"""Our simulation of federated averaging beside Flower's: rounds, and clients per second.

    make flower
    build/flower/bin/python benchmarks/federated_flower.py \
        --json=benchmarks/measured/federated_flower.json

Both have the CNN and the data of `examples/federated_flower/`, the same split, and clients
that take the same number of steps of the same optimizer. Ours is `Simulation`; Flower's is
its FedAvg in its simulation on Ray, with a client that calls `fit`. Each contender draws the
clients of a round by itself, so rounds to the target differ by chance.

Contenders take turns, each in a process of its own. A round's time is that from the choice
of clients to the next model, without the evaluation; the first rounds, in which graphs are
made, do not count. Each run is written when it ends, and none is repeated.
"""

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from absl import app, flags

ROOT = Path(__file__).resolve().parent.parent
CONTENDERS = ("tfdist", "flower")
WARM_UP, AT_LEAST = 2, 8  # rounds
Record = dict[str, Any]
FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_enum("contender", None, CONTENDERS, "Run this one here, and print it.")
    flags.DEFINE_string("json", None, "Where runs are kept.")
    flags.DEFINE_bool("markdown", False, "Print the table of the runs so far.")
    flags.DEFINE_integer("seeds", 5, "Repeats, each with another split.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of --contender.", lower_bound=0)
    flags.DEFINE_integer("clients", 50, "How many there are.", lower_bound=1)
    flags.DEFINE_float("fraction", 0.2, "Of the clients, in each round.")
    flags.DEFINE_integer("local_epochs", 5, "Of a client in a round.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 10, "Of a client.", lower_bound=1)
    flags.DEFINE_float("target", 0.95, "The test accuracy to reach.")
    flags.DEFINE_integer("limit", 300, "The most rounds of a run.", lower_bound=1)
    flags.DEFINE_bool(
        "busy", False, "Others use the machine: keep rounds, but no rates."
    )
    flags.DEFINE_float("cpus", 1.0, "Of each of Flower's workers.", lower_bound=0.1)


def run_tfdist() -> list[tuple[float, float]]:
    """Returns the seconds and the test accuracy of each round."""
    import flower_fedavg
    from flower_fedavg import experiment, federated

    averaging = federated.FederatedAveraging(
        FLAGS.fraction, FLAGS.local_epochs, FLAGS.batch_size, seed=FLAGS.seed
    )
    model, test = experiment.build_model(), experiment.test_data()
    train, _ = experiment.load_data()
    split = flower_fedavg.split(FLAGS.clients, FLAGS.seed)
    simulation = federated.Simulation(model, averaging, train, split)
    found: list[tuple[float, float]] = []
    while not is_over(found):
        begin = time.perf_counter()
        simulation.run(len(found) + 1)
        seconds = time.perf_counter() - begin
        accuracy = model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
        found.append((seconds, accuracy))
    return found


def run_flower() -> list[tuple[float, float]]:
    """Returns the same of Flower's FedAvg."""
    import flower_fedavg

    return flower_fedavg.run(
        FLAGS.clients,
        FLAGS.fraction,
        FLAGS.local_epochs,
        FLAGS.batch_size,
        FLAGS.seed,
        FLAGS.cpus,
        is_over,
    )


def is_over(rounds: list[tuple[float, float]]) -> bool:
    """Whether a run has reached the target, and has enough rounds for a rate."""
    reached = any(accuracy >= FLAGS.target for _, accuracy in rounds)
    return len(rounds) >= (AT_LEAST if reached else max(AT_LEAST, FLAGS.limit))


def summary(rounds: list[tuple[float, float]], in_a_round: int) -> Record:
    """Returns what a run has shown: rounds to the target, and clients per second."""
    seconds = [each for each, _ in rounds[WARM_UP:]]
    accuracies = [each for _, each in rounds]
    reached = [n + 1 for n, each in enumerate(accuracies) if each >= FLAGS.target]
    return {
        "rounds": reached[0] if reached else None,
        "accuracy": max(accuracies),
        "clients_per_second": in_a_round / statistics.median(seconds),
    }


def measured(contender: str, seed: int) -> Record:
    """Runs a contender in a process of its own."""
    # The last of a flag that is repeated is the one that counts.
    flags_of_run = [*sys.argv[1:], f"--contender={contender}", f"--seed={seed}"]
    done = subprocess.run(
        [sys.executable, __file__, *flags_of_run],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), os.environ.get("PYTHONPATH", "")]
            ),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "FLWR_TELEMETRY_ENABLED": "0",
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(records: list[Record]) -> str:
    """Returns means and ranges over seeds, and the ratio of each seed, as Markdown."""
    lines = [
        "| | rounds to the target | clients per second |",
        "| --- | --- | --- |",
    ]
    for contender in CONTENDERS:
        found = [each for each in records if each["contender"] == contender]
        rounds = [each["rounds"] for each in found]
        rates = [e for each in found if (e := each["clients_per_second"])]
        reached = f"{spread(rounds)}" if None not in rounds else "not reached by all"
        lines.append(f"| {contender} | {reached} | {spread(rates)} |")
    ratios = [
        one["clients_per_second"] / other["clients_per_second"]
        for one in records
        for other in records
        if one["seed"] == other["seed"]
        and (one["contender"], other["contender"]) == CONTENDERS
        and one["clients_per_second"]
    ]
    if ratios:
        lines.append(f"| tfdist / flower | | {spread(ratios)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Returns the mean and the range."""
    if not values:
        return ""
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main(argv: list[str]) -> None:
    """Measures, or prints the table."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    if FLAGS.contender:
        in_a_round = max(1, int(FLAGS.fraction * FLAGS.clients))
        with contextlib.redirect_stdout(io.StringIO()):  # Flower prints much.
            rounds = {"tfdist": run_tfdist, "flower": run_flower}[FLAGS.contender]()
        print(json.dumps(summary(rounds, in_a_round)))
        return
    if FLAGS.json is None:
        raise app.UsageError("--json says where runs are kept")
    path = Path(FLAGS.json)
    records = json.loads(path.read_text()) if path.exists() else []
    names = ("clients", "fraction", "local_epochs", "batch_size", "target", "cpus")
    settings = {name: FLAGS[name].value for name in names}
    for seed in range(0 if FLAGS.markdown else FLAGS.seeds):
        # Who begins changes, since a machine may get slower.
        for contender in CONTENDERS[:: 1 if seed % 2 else -1]:
            key = {"contender": contender, "seed": seed, **settings}
            if any(key.items() <= each.items() for each in records):
                continue
            records.append({**key, **measured(contender, seed)})
            if FLAGS.busy:
                records[-1]["clients_per_second"] = None
            path.write_text(json.dumps(records, indent=1) + "\n")
            print(records[-1], flush=True)
    print(table([each for each in records if settings.items() <= each.items()]))


if __name__ == "__main__":
    define_flags()
    app.run(main)
