"""What runs in the launcher's pod: the supervisor, and a connection to every other pod."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from launch import foreground
from launch.engines.hosts import Host
from launch.engines.kubernetes_objects import RETRIED, hostname, tasks
from launch.engines.kubernetes_pods import END_FILE, LOG_PREFIX, PORT
from launch.engines.layout import Layout, Surroundings, job_on_hosts
from launch.engines.look import Found, look_at_hosts
from launch.job import Job
from launch.plan import Program
from launch.remote import connector
from tf_config.contract import EXIT_USAGE

_ENDED_EARLY = 1


def layout(name: str, counts: Mapping[str, int]) -> Layout:
    """Returns the layout of a job: every task has a pod of its own."""
    everyone = tasks(counts)
    names = [hostname(name, task) for task in everyone]
    where = {task: index for index, task in enumerate(everyone)}
    return Layout(
        [Host(each) for each in names], [f"{each}.{name}" for each in names], where
    )


def plan(
    at: Layout,
    program: Program,
    kind: str,
    there: Surroundings,
    protection: str,
    /,
    found: Found | None = None,
    **options: Any,
) -> Job:
    """Plans the job.

    Args:
        at: The pods.
        program: The script and its flags.
        kind: One of `launch.plan.PROGRAM_KINDS`.
        there: What the tasks find.
        protection: `mode.TLS`, or `mode.POLICY` for the NetworkPolicy alone.
        found: What the pods have; None for an example.
        **options: For `launch.engines.layout.job_on_hosts`.

    Raises:
        PlanError: If the program does not fit the cluster.
    """
    ports = found.ports if found else at.example_ports(PORT, protection)
    ends = found.ends if found else at.example_ends(PORT)
    options |= {"protection": protection, "ends": ends}
    return job_on_hosts(at, ports, program, kind, there, **options)


def surroundings(at: Layout) -> Surroundings:
    """Returns what a task finds in its pod: what this process finds in its own."""
    connect = [
        connector.command(sys.executable, at.addresses[host], str(task))
        for task, host in at.where.items()
    ]
    return Surroundings(sys.executable, os.getcwd(), {}, connect)


def run(
    at: Layout,
    program: Program,
    kind: str,
    *,
    has_failure_policy: bool,
    protection: str,
    connect_timeout: float,
    **options: Any,
) -> int:
    """Runs the job, and returns the exit status for Kubernetes.

    The job's own exit status is in `END_FILE`. A launcher that is taken away with its
    pod writes none, and Kubernetes starts another.

    Args:
        at: The pods.
        program: The script and its flags.
        kind: One of `launch.plan.PROGRAM_KINDS`.
        has_failure_policy: Whether Kubernetes tells an error from a lost pod.
        protection: As for `plan`.
        connect_timeout: Seconds within which every pod must answer.
        **options: For `plan`.
    """
    # The first process of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    there = surroundings(at)
    signals: list[int] = []
    try:
        options["log_dir"] = tempfile.mkdtemp(prefix=LOG_PREFIX)
        planned = partial(plan, at, program, kind)
        found = look_at_hosts(
            at,
            planned(there, protection, **options),
            there,
            program,
            first_port=PORT,
            timeout=connect_timeout,
        )
        here = there.with_extra(found.proxies)
        job = planned(here, protection, found=found, **options)
        code = foreground.run(job, on_signal=signals.append)
    except ValueError as error:
        print(f"launch.kubernetes: error: {error}", file=sys.stderr, flush=True)
        code = EXIT_USAGE
    if signals and code:
        return 128 + signal.SIGTERM
    connector.end([(at.addresses[host], str(task)) for task, host in at.where.items()])
    Path(END_FILE).write_text(json.dumps({"code": code}))
    if not has_failure_policy:
        # Kubernetes would start it again, with whatever other status.
        return 0
    return _ENDED_EARLY if code in RETRIED else code
