"""What runs in the launcher's pod: the supervisor, and a connection to every other pod."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from launch import foreground
from launch.engines.hosts import Host
from launch.engines.kubernetes_objects import RETRIED, hostname
from launch.engines.kubernetes_pods import END_FILE, LOG_PREFIX
from launch.engines.layout import Layout, Surroundings
from launch.engines.planner import HostPlanner
from launch.plan import tasks_of
from launch.remote import connector
from tf_config.contract import EXIT_USAGE

_ENDED_EARLY = 1


def layout(name: str, counts: Mapping[str, int]) -> Layout:
    """Returns the layout of a job: every task has a pod of its own."""
    everyone = tasks_of(counts)
    names = [hostname(name, task) for task in everyone]
    where = {task: index for index, task in enumerate(everyone)}
    return Layout(
        [Host(each) for each in names], [f"{each}.{name}" for each in names], where
    )


def surroundings(at: Layout) -> Surroundings:
    """Returns what a task finds in its pod: what this process finds in its own."""
    connect = [
        connector.command(sys.executable, at.addresses[host], str(task))
        for task, host in at.where.items()
    ]
    return Surroundings(sys.executable, os.getcwd(), {}, connect)


def run(at: Layout, planner: HostPlanner, *, has_failure_policy: bool) -> int:
    """Runs the job, and returns the exit status for Kubernetes.

    The job's own exit status is in `END_FILE`. A launcher that is taken away with its
    pod writes none, and Kubernetes starts another.

    Args:
        at: The pods.
        planner: Plans the job.
        has_failure_policy: Whether Kubernetes tells an error from a lost pod.
    """
    # The first process of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    signals: list[int] = []
    try:
        log_dir = tempfile.mkdtemp(prefix=LOG_PREFIX)
        planner = replace(planner, options={**planner.options, "log_dir": log_dir})
        job = planner.on_hosts(at, surroundings(at))
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
