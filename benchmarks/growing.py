"""What tables that grow cost, beside tables of a fixed number of rows.

    sudo .venv/bin/python benchmarks/growing.py --json=benchmarks/measured/growing.json
    python benchmarks/growing_report.py     # into docs/measured-embeddings.md

Parts, each of which can be measured alone and replaces what the file has of it:

    sgd, adagrad  the steps per second of the recommender of peers.py, 10 steps per call:
                  both kinds of tables, with a million rows; with 10% new ids in each
                  batch; and, under SGD, Paddle (`make build/peers/paddle/.made`)
    alone         the rows per second in one process; TFRA's (`make build/peers/tfra/.made`)
    drift         how well clicks on ids that come and go are predicted, a log each round
    memory        the resident bytes of the ps for each row that training creates
    checkpoints   the seconds and bytes of a full checkpoint

Contenders take turns; ratios are of the same round.
"""

import contextlib
import functools
import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import growing_report
import peers
import peers_systems
from absl import app, flags
from peers_cluster import PeerError
from peers_measure import Plan, measure
from peers_workloads import WORKLOADS
from turns import command, environment, keep, kept

TABLES = ("tfdist-x10", "tfdist-growing-x10", "tfdist-growing-new-x10")
SPEEDS = {
    "sgd": ("recommender", ("paddle", "paddle-new", *TABLES)),
    "adagrad": ("recommender-adagrad", TABLES),
    "alone": ("rows", WORKLOADS["rows"].systems),
}
"""Of the parts that take turns, the workload and its contenders."""
PARTS = (*SPEEDS, "drift", "memory", "checkpoints")


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_list("parts", list(PARTS), f"What to do, of {', '.join(PARTS)}.")
    flags.DEFINE_integer("rounds", 5, "Measured rounds.", lower_bound=1)
    flags.DEFINE_float("seconds", 4, "Seconds of a turn.", lower_bound=0.1)
    flags.DEFINE_integer(
        "learn_steps", 1000, "Steps before the loss is taken.", lower_bound=1
    )
    flags.DEFINE_integer(
        "rows", 2_000_000, "Rows of `memory` and `checkpoints`.", lower_bound=1
    )
    flags.DEFINE_string("json", None, "Write every measurement to this file.")
    flags.register_validator(
        "parts",
        lambda values: values and set(values) <= set(PARTS),
        f"must be some of {','.join(PARTS)}",
    )


def speed(part: str, values: flags.FlagValues) -> dict[str, Any]:
    """Lets the contenders of a part take turns."""
    name, contenders = SPEEDS[part]
    workload = WORKLOADS[name]
    # The recommender draws its examples; beside this file, Paddle's are written.
    data = peers_systems.ENVIRONMENTS / "mnist.npz"
    job = peers_systems.Job(2, 2, data.resolve(), workload)
    plan = Plan(
        name,
        values.rounds,
        values.seconds,
        values.learn_steps,
        losses=1,
        grain=job.num_workers * workload.grain,
    )
    with tempfile.TemporaryDirectory() as logs:
        about = peers.environment(contenders)
        return measure(contenders, job, plan, Path(logs, part), about).to_dict()


def alone(module: str, function: str, *arguments: int) -> Any:
    """Calls a function of a module here in a process, as a chief has one cluster."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as pool:
        return pool.submit(_call, module, function, arguments).result()


def _call(module: str, function: str, arguments: Sequence[int]) -> Any:
    return getattr(importlib.import_module(module), function)(*arguments)


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark.

    Returns:
        The exit status: 2 if a contender fails.
    """
    if len(argv) > 1:
        raise app.UsageError(f"flags only; received {' '.join(argv[1:])}")
    values = flags.FLAGS
    how: dict[str, Callable[[], Any]] = {
        **{part: functools.partial(speed, part, values) for part in SPEEDS},
        "drift": lambda: [
            alone("growing_drift", "drift", seed) for seed in range(values.rounds)
        ],
        "memory": lambda: [
            alone("growing_tables", "memory", values.rows) for _ in range(values.rounds)
        ],
        "checkpoints": lambda: alone(
            "growing_tables", "checkpoints", values.rows, values.rounds
        ),
    }
    done = kept(values.json)
    done["environment"] = environment("tensorflow", "keras")
    for part in values.parts:
        load = round(os.getloadavg()[0], 1)
        try:
            found = how[part]()
        except (PeerError, peers_systems.SetupError) as error:
            print(f"growing.py: {error}", file=sys.stderr)
            return 2
        done[part] = {"command": command(), "load_average": load, "found": found}
        keep(values.json, done, [part])
    with contextlib.suppress(KeyError):
        print(growing_report.markdown(done))
    return 0


if __name__ == "__main__":
    define_flags()
    app.run(main)
