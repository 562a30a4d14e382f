"""Contenders of peers.py: which processes each one consists of. Starts nothing."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peer_programs.control import Task
from peers_workloads import WORKLOADS, Workload

import tf_config

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
ENVIRONMENTS = ROOT / "build" / "peers"
# One thread computes in each process, whatever library does it.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "MXNET_CPU_WORKER_NTHREADS": "1",
    "CPU_NUM": "1",
}
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_minloglevel": "3"}
_FIRST_PORT = 20000


class SetupError(ValueError):
    """A contender that does not exist, or whose environment does not."""


@dataclass(frozen=True)
class Process:
    """One process of a contender.

    Attributes:
        name: Its task, such as `ps:0`; counted under the job before the colon.
        argv: Its command.
        env: Variables in addition to the environment of peers.py.
        task: What it is told, if it runs a program of `peer_programs/`.
        leads: Whether it trains on request.
        starts: What it starts itself, as part of a command line, and the job under which
            that is counted; `chief` for the rest.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    task: Task | None = None
    leads: bool = False
    starts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What the processes of every contender have in common.

    Attributes:
        num_ps: Parameter servers.
        num_workers: Workers.
        data: The images.
        workload: What they train.
        address: Returns the address of a task's host.
    """

    num_ps: int
    num_workers: int
    data: Path
    workload: Workload
    address: Callable[[str], str] = lambda task: "127.0.0.1"

    @property
    def tasks(self) -> list[str]:
        """The ps, and then the workers."""
        names = [f"ps:{index}" for index in range(self.num_ps)]
        return [*names, *(f"worker:{index}" for index in range(self.num_workers))]

    def task(self, job: str, index: int, **options: Any) -> Task:
        """Returns the task of a process. Ports are free: each contender has a network."""
        addresses = tuple(
            f"{self.address(name)}:{port}"
            for port, name in enumerate(self.tasks, _FIRST_PORT)
        )
        return Task(
            job,
            index,
            addresses[: self.num_ps],
            addresses[self.num_ps :],
            str(self.data),
            self.workload.model,
            self.workload.optimizer,
            self.workload.batch_size,
            self.workload.learning_rate,
            options=options,
        )


def processes(name: str, job: Job) -> list[Process]:
    """Returns the processes of a contender.

    Args:
        name: One of `SYSTEMS`, and `@PATH` after it to take tfdist from another tree.
        job: What they train, and how many of them.

    Raises:
        SetupError: If there is no such contender, its environment is missing, or it has
            no program for the workload.
    """
    system, at, tree = name.partition("@")
    if system not in SYSTEMS:
        raise SetupError(
            f"unknown contender {system!r}; choose from {', '.join(SYSTEMS)}"
        )
    of_workload = job.workload.systems
    if of_workload and system not in of_workload:
        raise SetupError(
            f"{system} has no {job.workload.model}; choose from {', '.join(of_workload)}"
        )
    if "-every" in system and not merges(Path(tree) if tree else ROOT):
        raise SetupError(f"{name}: this tfdist has no `ExchangeEvery`")
    if at and not (tree and (Path(tree) / "tfdist").is_dir()):
        raise SetupError(
            f"{name}: {tree or 'nothing'} is not a directory that contains tfdist"
        )
    every = SYSTEMS[system](job)
    missing = [each.argv[0] for each in every if not Path(each.argv[0]).exists()]
    if missing:
        raise SetupError(f"{system} needs {missing[0]}: run `make peers`")
    path = os.pathsep.join(
        [str(Path(tree).resolve() if tree else ROOT), str(BENCHMARKS)]
    )
    shared = {**ONE_THREAD, **_QUIET, "PYTHONPATH": path}
    return [replace(each, env={**shared, **each.env}) for each in every]


def merges(tree: Path) -> bool:
    """Whether the tfdist in a tree can exchange values every few steps."""
    exports = (tree / "tfdist").glob("__init__.py*")  # An older tree has no stub.
    return any("ExchangeEvery" in each.read_text() for each in exports)


def python_of(environment: str) -> str:
    """Returns the interpreter of an environment that `make peers` made."""
    return str(ENVIRONMENTS / environment / "bin" / "python")


def _program(python: str, program: str, task: Task, leads: bool, **env: str) -> Process:
    argv = (python, "-m", f"peer_programs.{program}")
    return Process(f"{task.job}:{task.index}", argv, env, task, leads)


def _mxnet(job: Job) -> list[Process]:
    shared = {
        "DMLC_PS_ROOT_URI": job.address("chief:0"),
        "DMLC_PS_ROOT_PORT": str(_FIRST_PORT),
        "DMLC_NUM_SERVER": str(job.num_ps),
        "DMLC_NUM_WORKER": str(job.num_workers),
    }

    def own(name: str, role: str) -> dict[str, str]:
        return {**shared, "DMLC_NODE_HOST": job.address(name), "DMLC_ROLE": role}

    # A server, or the scheduler, serves while it imports mxnet.
    serves = (python_of("mxnet"), "-c", "import mxnet")
    roles = ["scheduler", *["server"] * job.num_ps]
    names = ["chief:0", *(f"ps:{index}" for index in range(job.num_ps))]
    servers = [
        Process(name, serves, own(name, role))
        for name, role in zip(names, roles, strict=True)
    ]
    workers = [
        _program(
            python_of("mxnet"),
            "mxnet_kvstore",
            job.task("worker", index),
            True,
            **own(f"worker:{index}", "worker"),
        )
        for index in range(job.num_workers)
    ]
    return [*servers, *workers]


def _every_task(
    environment: str, program: str, **options: Any
) -> Callable[[Job], list[Process]]:
    """Returns a contender whose ps and workers all run one program; workers lead."""

    def build(job: Job) -> list[Process]:
        python = python_of(environment) if environment else sys.executable
        tasks = [job.task("ps", index, **options) for index in range(job.num_ps)]
        tasks += [
            job.task("worker", index, **options) for index in range(job.num_workers)
        ]
        return [_program(python, program, task, task.job == "worker") for task in tasks]

    return build


def _coordinated(
    program: str, server: Sequence[str], **options: Any
) -> Callable[[Job], list[Process]]:
    """Returns a contender whose chief leads, over a cluster that TF_CONFIG describes."""

    def build(job: Job) -> list[Process]:
        chief = job.task("chief", 0, **options)
        cluster = tf_config.Cluster(
            chief=(f"{job.address('chief:0')}:{_FIRST_PORT - 1}",),
            ps=chief.ps,
            worker=chief.workers,
        )

        def config(name: str) -> str:
            return tf_config.TFConfig(cluster, tf_config.Task.parse(name)).to_json()

        servers = [
            Process(name, (sys.executable, *server), {"TF_CONFIG": config(name)})
            for name in job.tasks
        ]
        leader = _program(
            sys.executable, program, chief, True, TF_CONFIG=config("chief:0")
        )
        return [*servers, leader]

    return build


def _ray(job: Job) -> list[Process]:
    driver = _program(python_of("ray"), "ray_actors", job.task("chief", 0), True)
    # It would kill actors when other programs fill the memory.
    driver.env["RAY_memory_monitor_refresh_ms"] = "0"
    starts = {"ray::ParameterServer": "ps", "ray::Worker": "worker"}
    return [replace(driver, starts=starts)]


def _synchronous(program: str, environment: str = "") -> Callable[[Job], list[Process]]:
    """Returns a contender of workers alone, each with a TF_CONFIG."""

    def build(job: Job) -> list[Process]:
        python = python_of(environment) if environment else sys.executable
        tasks = [
            job.task("worker", index, library="synchronous", steps=1)
            for index in range(job.num_workers)
        ]
        cluster = tf_config.Cluster(worker=tasks[0].workers)
        return [
            _program(
                python,
                program,
                task,
                True,
                TF_CONFIG=tf_config.TFConfig(
                    cluster, tf_config.Task("worker", task.index)
                ).to_json(),
            )
            for task in tasks
        ]

    return build


def _alone(
    program: str, environment: str = "", **options: Any
) -> Callable[[Job], list[Process]]:
    def build(job: Job) -> list[Process]:
        python = python_of(environment) if environment else sys.executable
        return [_program(python, program, job.task("chief", 0, **options), True)]

    return build


def _tfdist(**options: Any) -> Callable[[Job], list[Process]]:
    return _coordinated(
        "keras_fit", ("-m", "tfdist.server"), library="tfdist", **options
    )


SYSTEMS: dict[str, Callable[[Job], list[Process]]] = {
    "tfdist-x1": _tfdist(steps=1),
    "tfdist-x10": _tfdist(steps=10),
    "tfdist-x100": _tfdist(steps=100),
    "tfdist-arrays": _tfdist(steps=1, arrays=True),
    "tfdist-arrays-x10": _tfdist(steps=10, arrays=True),
    "tfdist-bfloat16": _tfdist(steps=10, wire_dtype="bfloat16"),
    "tfdist-growing-x10": _tfdist(steps=10, growing=True),
    "tfdist-growing-new-x10": _tfdist(steps=10, growing=True, new_ids=0.1),
    "tfdist-every5": _tfdist(steps=100, every=5),
    "tfdist-every10": _tfdist(steps=100, every=10),
    "tfdist-every13": _tfdist(steps=130, every=13),
    "mxnet": _mxnet,
    "paddle": _every_task("paddle", "paddle_fleet"),
    "paddle-new": _every_task("paddle", "paddle_fleet", new_ids=0.1),
    "tf1": _every_task("", "tf1_between_graph"),
    "tf_keras-x1": _coordinated(
        "keras_fit", ("-m", "peer_programs.tf_server"), library="tf_keras", steps=1
    ),
    "tf_keras-x10": _coordinated(
        "keras_fit", ("-m", "peer_programs.tf_server"), library="tf_keras", steps=10
    ),
    "torch-rpc": _every_task("torch", "torch_rpc"),
    "ray": _ray,
    "torch-ddp": _synchronous("torch_ddp", "torch"),
    "tfdist-synchronous": _synchronous("keras_fit"),
    "keras-x1": _alone("keras_fit", library="keras", steps=1),
    "keras-x100": _alone("keras_fit", library="keras", steps=100),
    **{
        name: _alone("growing_alone", "tfra" * ("tfra" in name), contender=name)
        for name in WORKLOADS["rows"].systems
    },
}
"""What builds the processes of each contender."""
