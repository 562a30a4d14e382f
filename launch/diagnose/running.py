"""Finds the clusters running on this machine, by the TF_CONFIG of their processes."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from launch.diagnose.probe_result import ProbeResult
from launch.supervise import processes
from tf_config import contract, split_address


@dataclass(frozen=True)
class Running:
    """A process that was started as a task."""

    pid: int
    tf_config: str

    def __str__(self) -> str:
        try:
            cluster = json.loads(self.tf_config)["cluster"]
            sizes = [f"{len(tasks)} {job}" for job, tasks in cluster.items()]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sizes = ["a TF_CONFIG that cannot be read"]
        return f"{', '.join(sizes)}: {processes.describe(self.pid)}"


def tf_config_of(pid: int) -> str | None:
    """Returns the TF_CONFIG a process was started with; None if it has none."""
    return environ_of(pid).get(contract.TF_CONFIG) or None


def environ_of(pid: int) -> Mapping[str, str]:
    """Returns the environment a process was started with; {} if it is unreadable."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).environ()
    return {}


def clusters() -> list[Running]:
    """Returns the oldest process of each cluster running here."""
    found: dict[str, Running] = {}
    # Children of a task inherit its TF_CONFIG, so the oldest process is a task itself.
    for process in sorted(psutil.process_iter(), key=_age):
        text = None if process.pid == os.getpid() else tf_config_of(process.pid)
        if text is not None:
            found.setdefault(_cluster_in(text), Running(process.pid, text))
    return list(found.values())


def is_same_cluster(one: str, other: str) -> bool:
    """Returns True if two values of TF_CONFIG belong to tasks of the same cluster."""
    return _cluster_in(one) == _cluster_in(other)


def in_other_network(pid: int) -> bool:
    """Returns True if a process is in another network namespace."""
    with contextlib.suppress(OSError):
        return not os.path.samefile(f"/proc/{pid}/ns/net", "/proc/self/ns/net")
    return False


def listeners(reports: Mapping[str, ProbeResult]) -> dict[str, str]:
    """Describes the process that listens on each address of this machine.

    Only root can see the processes of other users.
    """
    try:
        sockets = psutil.net_connections("tcp")
    except psutil.Error:
        return {}
    pids = {
        each.laddr.port: each.pid
        for each in sockets
        if each.status == psutil.CONN_LISTEN and each.pid
    }
    found = {}
    for task, report in reports.items():
        pid = pids.get(split_address(report.address)[1])
        if pid is not None and report.is_here:
            found[task] = processes.describe(pid) + _state(pid)
    return found


def _state(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            return f", which is stopped: kill -CONT {pid}"
    return ""


def _age(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return float(process.create_time())
    return float("inf")


def _cluster_in(text: str) -> str:
    """Returns the common part of the TF_CONFIGs of one cluster."""
    try:
        # Only "task" differs between the tasks of one cluster.
        return json.dumps(json.loads(text)["cluster"], sort_keys=True)
    except (ValueError, KeyError, TypeError, RecursionError):
        return text
