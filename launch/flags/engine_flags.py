"""The flags that every engine's command has, and those of several of them."""

import os
import shlex
from collections.abc import Collection
from typing import Any

from launch.engines import record
from launch.engines.engine import Engine
from launch.engines.layout import Layout
from launch.engines.planner import HostPlanner
from launch.engines.record import Record
from launch.flags import cluster_flags
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.job.plan import Program
from launch.secure import mode
from tf_config import contract

LAST_PORT = 65_535


def define(values: Flags, connect_timeout: float, whom: str) -> None:
    """Defines the flags of every engine, with those of a whole cluster.

    `whom` says who has to be there within `connect_timeout`: `every host must answer`.
    """
    values.text(
        "name",
        None,
        "The job's name, for launch.jobs and for the engine. By default made from the "
        "script's.",
    )
    values.switch(
        "detach",
        False,
        "Start the job, print its name, and return; python -m launch.jobs follows it.",
    )
    values.number(
        "connect_timeout",
        connect_timeout,
        f"Seconds within which {whom}, before any task is started.",
    )
    values.choice("secure", mode.AUTO, mode.MODES, mode.HELP)
    cluster_flags.define(values)


def define_env(values: Flags) -> None:
    """Defines the flag of engines whose tasks do not get this environment."""
    values.repeated(
        "env",
        [],
        "A variable for the tasks, in addition to those of their host: NAME=VALUE, or "
        "NAME for the value it has here. Repeat the flag for more.",
    )


def define_first_port(values: Flags) -> None:
    """Defines the flag of engines whose hosts others use, too."""
    values.integer(
        "first_port",
        None,
        "The first port of the tasks on each host, for a firewall; with TLS, the only one "
        "that the other hosts use. By default, free ports from 10000 up.",
        lower_bound=1,
        upper_bound=LAST_PORT,
    )


def check(values: Flags, not_empty: Collection[str]) -> None:
    """Checks values that no parser can reject by itself; some of them are texts."""
    cluster_flags.check(values)
    cluster_flags.check_seconds("connect_timeout", values.connect_timeout)
    for name in not_empty:
        value = values[name].value
        if value is not None and (not value.strip() or "\0" in value):
            raise UsageError(f"--{name} is empty: give a value, or omit the flag")


def env_of(values: Flags) -> dict[str, str]:
    """Returns the variables that --env gives to the tasks."""
    env = {}
    for each in values.env:
        name, has_value, value = each.partition("=")
        if not name or not (name.isidentifier() and name.isascii()):
            raise UsageError(
                f"--env={each!r}: write NAME=VALUE, or NAME for its value here"
            )
        if not has_value and name not in os.environ:
            raise UsageError(f"--env={name}: there is no variable {name} here")
        if name == contract.TF_CONFIG:
            raise UsageError(
                f"--env={each!r}: the launcher tells each task in {name} which cluster "
                "and which task it is; omit it, and describe the cluster with --num_ps "
                "and --num_workers"
            )
        env[name] = value if has_value else os.environ[name]
    return env


def planner(
    values: Flags, program: Program, kind: str, first_port: int | None = None
) -> HostPlanner:
    """Returns the planner of the job that the flags ask for."""
    return HostPlanner(
        program,
        kind,
        mode.resolve(values.secure),
        values.connect_timeout,
        first_port,
        values.checkpoint_dir,
        {"log_dir": values.log_dir, **cluster_flags.limits(values)},
    )


def check_first_port(layout: Layout, planner: HostPlanner) -> None:
    """Checks that each host has enough ports from the first on."""
    ports = layout.example_ports(planner.first_port, planner.protection)
    if (last := max(each[-1] for each in ports.values())) > LAST_PORT:
        raise UsageError(
            f"--first_port={planner.first_port} leaves too few ports for a host's tasks: "
            f"they would go up to {last}, and the last port is {LAST_PORT}"
        )


def check_work_dir(path: str | None) -> None:
    """Checks a working directory on other hosts."""
    if path is not None and not os.path.isabs(path):
        raise UsageError(
            "--work_dir must be an absolute path, that of a directory where the tasks "
            f"run; received {path!r}"
        )


def check_ssh(command: str) -> None:
    """Checks the command of ssh."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--ssh={command!r} is no command: {error}") from None
    if not words:
        raise UsageError("--ssh is empty: give a command, such as ssh -p 2200")


def counts(values: Flags, kind: str, most: int) -> dict[str, int]:
    """Returns how many tasks there are of each job."""
    found = cluster_flags.counts(values, kind)
    if (tasks := sum(found.values())) > most:
        raise UsageError(
            f"{tasks} tasks are more than the {most} that a job may have: lower --num_ps "
            "or --num_workers"
        )
    return found


def start(values: Flags, engine: Engine[Any], job: Any, kept: Record) -> int:
    """Starts a job, and returns its exit status, or 0 as soon as it runs detached."""
    record.tidy()
    if values.detach:
        engine.detach(job, kept)
        print(kept.name)
        return 0
    return engine.run(job, kept)
