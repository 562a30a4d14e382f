"""How accuracy grows with bytes and with seconds where models are mixed rarely.

    python benchmarks/local_updates.py --json=benchmarks/measured/local_updates.json
    python benchmarks/local_updates_report.py     # into docs/measured-local-updates.md

Four workers, each on a host with a link of its own: a network namespace with a limited
rate. Each configuration trains a CNN on real images of MNIST once per seed, and the
configurations take turns. Bytes are read from the counters of the hosts' interfaces. Runs
that the file has already are not made again, so more seeds can be added later. It needs
root and iproute2.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import turns
from absl import app, flags

from launch import local
from launch.job.job import Job
from launch.job.plan import Program
from launch.measure.run import Measured, run
from launch.measure.shaped import ShapedHosts, shaped_hosts

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "benchmarks" / "local_updates_program.py"
WORKERS = 4
_TRAINING = "--learning_rate=0.001"
_OUTER = "--outer_learning_rate=0.7"
CONFIGS = {
    "synchronous": ["--synchronous"],
    "mean_1": ["--local_steps=1"],
    "mean_10": ["--local_steps=10"],
    "mean_100": ["--local_steps=100"],
    "mean_500": ["--local_steps=500"],
    "diloco_100": ["--local_steps=100", _OUTER],
    "diloco_100_int8": ["--local_steps=100", _OUTER, "--wire_dtype=int8"],
    "diloco_100_overlap": ["--local_steps=100", _OUTER, "--overlap"],
    "diloco_100_fragments": [
        "--local_steps=100",
        _OUTER,
        "--overlap",
        "--fragments=4",
    ],
    "ring_10": ["--local_steps=10", "--mixing=ring"],
    "exponential_10": ["--local_steps=10", "--mixing=exponential"],
}
"""The flags of each configuration; the number is that of its local steps."""

PAIRED = ("synchronous", "diloco_100")
"""Those of which there are enough seeds for an interval of their difference."""

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("seeds", 5, f"Seeds of {' and '.join(PAIRED)}.")
    flags.DEFINE_integer("other_seeds", 1, "Seeds of the other configurations.")
    flags.DEFINE_multi_enum(
        "config", list(CONFIGS), list(CONFIGS), "Which; give it once for each."
    )
    flags.DEFINE_integer("epochs", 20, "Of each training, of 50 steps each.")
    flags.DEFINE_string("rate", "200mbit", "Of each link.")
    flags.DEFINE_string("json", None, "The file of the runs.")


def schedule(
    configs: Sequence[str], seeds: int, other_seeds: int
) -> list[tuple[str, int]]:
    """Returns the runs to make: each configuration once, then again in reverse, ..."""
    return [
        (config, seed)
        for seed in range(max(seeds, other_seeds))
        for config in (configs[::-1] if seed % 2 else configs)
        if seed < (seeds if config in PAIRED else other_seeds)
    ]


def job_of(hosts: ShapedHosts, options: Sequence[str], log_dir: str) -> Job:
    """Returns the job of four workers, each on its host."""
    values = local.define_flags()
    values(
        [
            *("launch.local", "--num_ps=0", f"--num_workers={WORKERS}"),
            *(f"--log_dir={log_dir}", "--startup_timeout=200"),
        ]
    )
    program = Program(str(PROGRAM), tuple(options))
    job = local.job_of(values, program, hosts.cluster)
    return hosts.place(replace(job, echo=False))


def measure(hosts: ShapedHosts, options: Sequence[str]) -> dict[str, Any]:
    """Trains once; returns the bytes of the whole job, and its epochs.

    Raises:
        RuntimeError: If it failed.
    """
    with tempfile.TemporaryDirectory() as log_dir:
        job = job_of(hosts, options, log_dir)
        before = hosts.bytes_of(job)
        found = run(job, {}, partial(hosts.bytes_of, job))
        after = hosts.bytes_of(job)
        if found.status or not found.epochs:
            raise RuntimeError(f"{options} failed: {said(found, log_dir)}")
    in_all = {name: after[name] - before[name] for name in after}
    return {
        "received": [in_all[f"received worker:{each}"] for each in range(WORKERS)],
        "sent": [in_all[f"sent worker:{each}"] for each in range(WORKERS)],
        "epochs": [
            {
                "seconds": round(each.seconds, 3),
                "steps": each.steps,
                "received": sum(each.received.values()) / WORKERS,
                "accuracy": each.logs.get("val_accuracy"),
            }
            for each in found.epochs
        ],
    }


def said(found: Measured, log_dir: str) -> str:
    """Returns why a job failed, and the last words of its tasks."""
    logs = [path.read_text()[-3000:] for path in Path(log_dir).glob("**/*.log")]
    return "\n".join([*found.reasons, *logs])


def fresh(about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the file holds, or holds at first.

    Raises:
        ValueError: If the file was measured under other conditions.
    """
    found = turns.kept(FLAGS.json) or {**about, "runs": []}
    for name, value in about.items():
        if found[name] != value:
            raise ValueError(
                f"{FLAGS.json} was measured with another {name}: {found[name]}, not "
                f"{value}. Choose another file"
            )
    return found


def main(argv: Sequence[str]) -> None:
    """Measures what is missing, and writes the file after each run."""
    if len(argv) > 1:
        raise app.UsageError(f"only flags are allowed; received {argv[1:]}")
    about = {"rate": FLAGS.rate, "epochs": FLAGS.epochs, "cores": os.cpu_count()}
    done = fresh(about)
    have = {(each["config"], each["seed"]) for each in done["runs"]}
    with shaped_hosts(FLAGS.rate, 0, WORKERS) as hosts:
        for config, seed in schedule(FLAGS.config, FLAGS.seeds, FLAGS.other_seeds):
            if (config, seed) in have:
                continue
            options = [f"--seed={seed}", f"--epochs={FLAGS.epochs}"]
            found = measure(hosts, [*CONFIGS[config], _TRAINING, *options])
            load = os.getloadavg()[1]
            done["runs"].append({"config": config, "seed": seed, "load": load, **found})
            last = found["epochs"][-1]["accuracy"]
            megabytes = max(found["received"]) / 1e6
            print(f"{config}, seed {seed}: {last:.3f}, {megabytes:.2f} MB", flush=True)
            turns.keep(FLAGS.json, done)


if __name__ == "__main__":
    define_flags()
    sys.path.insert(0, str(ROOT))
    app.run(main)
