"""The engine ssh: this machine starts every task, through one connection each.

The supervisor of `launch.supervise` runs here, as it does for a job on one machine. Each
of its processes is a connection, with the agent of `launch.remote` at its other end.
"""

import contextlib
import re
import shlex
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from launch.engines import here
from launch.engines.engine import EngineError, tell
from launch.engines.here import RunEnd, cancel, follow, logs, status
from launch.engines.hosts import Host
from launch.engines.layout import record_of
from launch.engines.record import Record
from launch.job.job import Job
from launch.loopback import foreground
from tf_config.address import bracketed

__all__ = ["cancel", "detach", "follow", "logs", "render", "run", "status"]

_tell = partial(tell, "ssh")


@dataclass(frozen=True)
class SshJob:
    """A job, and how to plan it again.

    Attributes:
        first: The job on its hosts, at which somebody has looked.
        without: Looks at the hosts but some, and plans the job on them. Raises
            `EngineError` if that is not possible.
    """

    first: Job
    without: Callable[[Collection[str]], Job]


def connect(ssh: str, host: str, timeout: float) -> tuple[str, ...]:
    """Returns the command that runs a line of shell, its last argument, on a host."""
    # For each option, ssh takes the first value: the user's here, then these, then the
    # user's configuration. A connection that others share would not end with its task,
    # and a port that the configuration forwards can be forwarded once only.
    options = ["BatchMode=yes", "ControlMaster=no", "ControlPath=none"]
    options += ["ClearAllForwardings=yes", f"ConnectTimeout={max(1, round(timeout))}"]
    options += ["ServerAliveInterval=10", "ServerAliveCountMax=4"]
    return (*shlex.split(ssh), "-T", *(f"-o{each}" for each in options), "--", host)


def address(ssh: str, host: Host) -> str:
    """Returns where the other hosts reach a host: its name, after ssh's configuration."""
    if host.address:
        return host.address
    name = host.name.rpartition("@")[2]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # It prints the configuration, and does not connect.
        command = [*shlex.split(ssh), "-G", "--", host.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        if done.returncode == 0 and (
            found := re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
        ):
            name = found[1]
    return name


def addresses(ssh: str, hosts: Sequence[Host]) -> list[str]:
    """Returns where the other hosts reach each host."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        found = list(pool.map(lambda host: address(ssh, host), hosts))
    for host, name in zip(hosts, found, strict=True):
        if len(hosts) > 1 and re.fullmatch(r"localhost|127\.[0-9.]+|\[?::1\]?", name):
            raise EngineError(
                f"{host.name} has the address {name}, where no other host reaches it: "
                "give its name in the network, or address= in a --hostfile"
            )
        if (first := hosts[found.index(name)]) is not host:
            raise EngineError(
                f"{first.name} and {host.name} have the same address, {name}: name each "
                "host once; it can run several tasks"
            )
    return [bracketed(each) for each in found]


def render(job: Job) -> str:
    """Returns the commands, grouped by host."""
    lines = []
    for host in dict.fromkeys(plan.remote.host for plan in job.plans if plan.remote):
        here = [each for each in job.plans if each.remote and each.remote.host == host]
        lines.append(f"# {host}")
        for plan in here:
            lines += plan.lines
    return "\n".join(lines)


def run(job: SshJob, record: Record) -> int:
    """Runs a job to its end; however this process ends, the job ends with it."""
    return here.run(record, partial(_run, job), _tell)


def detach(job: SshJob, record: Record) -> None:
    """Starts a process of its own that runs the job."""
    here.detach(record, partial(_run, job))


def _run(job: SshJob, record: Record, lock: int, started: Callable[[], None]) -> int:
    """Runs a job, again on the other hosts if one is lost."""
    lost: list[str] = []

    def once(log_dir: str) -> RunEnd:
        planned = job.first
        if lost:
            try:
                planned = replace(job.without(lost), log_dir=log_dir)
            except EngineError as error:
                # It would say that nothing was started.
                _tell(f"the job cannot go on without {', '.join(lost)}: {error}")
                return RunEnd(1)
            found = record_of(planned, record.name, record.engine)
            replace(found, output=record.output).write()
        events: list[Mapping[str, Any]] = []
        signals: list[int] = []
        code = foreground.run(
            replace(planned, may_move=True),
            [lock],
            on_event=events.append,
            on_signal=signals.append,
        )
        gone = [str(each["lost_host"]) for each in events if "lost_host" in each]
        lost.extend(gone)
        return RunEnd(code, bool(gone) and not signals)

    started()
    return here.run_and_move(job.first, record, once, _tell)
