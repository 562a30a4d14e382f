"""The engine ssh: this machine starts every task, through one connection each.

The supervisor of `launch.supervise` runs here, as it does for a job on one machine. Each
of its processes is a connection, with the agent of `launch.remote` at its other end.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from launch import foreground
from launch.engines import background, moves, tail
from launch.engines.engine import ENDED, RUNNING, STARTING, EngineError, Status
from launch.engines.hosts import Host
from launch.engines.layout import record_of
from launch.engines.record import Record
from launch.engines.tail import Tail
from launch.job import Job
from launch.loopback import make_log_dir

_MOMENT = 0.1  # seconds
_TEARDOWN_TIMEOUT = 30.0


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
    # Of each option ssh takes the first: the user's here, then these, then those of the
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
        command = [*shlex.split(ssh), "-G", "--", host.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        if done.returncode == 0 and (
            found := re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
        ):
            name = found[1]
    return name


def addresses(ssh: str, hosts: Sequence[Host]) -> list[str]:
    """Returns where the other hosts reach each host.

    Raises:
        EngineError: If other hosts cannot reach one of them there.
    """
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
    return [f"[{each}]" if ":" in each.strip("[]") else each for each in found]


def render(job: Job) -> str:
    """Returns the commands, grouped by host."""
    lines = []
    for host in dict.fromkeys(plan.remote.host for plan in job.plans if plan.remote):
        here = [each for each in job.plans if each.remote and each.remote.host == host]
        lines.append(f"# {host}")
        for plan in here:
            lines += [f"# {plan.name} on {plan.address}", plan.shell_line()]
    return "\n".join(lines)


def run(job: SshJob, record: Record) -> int:
    """Runs a job to its end; however this process ends, the job ends with it."""
    make_log_dir(job.first.log_dir)
    with record.held() as lock:
        _tell(record.announcement)
        return _run(job, record, lock)


def detach(job: SshJob, record: Record) -> None:
    """Starts a process of its own that runs the job."""
    make_log_dir(job.first.log_dir)
    output = os.path.abspath(os.path.join(job.first.log_dir, "launch.log"))

    def work(started: Callable[[], None]) -> None:
        found = replace(record, output=output)
        with found.held() as lock:
            started()
            _run(job, found, lock)

    background.run(output, work)


def _run(job: SshJob, record: Record, lock: int) -> int:
    """Runs a job, again if a host is lost, and records its exit status."""
    lost: list[str] = []

    def once(log_dir: str) -> tuple[int, bool]:
        planned = job.first
        if lost:
            planned = replace(job.without(lost), log_dir=log_dir)
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
        return code, bool(gone) and not signals

    code = 1
    try:
        code = moves.run(job.first, once, _tell)
    except EngineError as error:
        # Raised before the first run, it would say that nothing was started.
        _tell(f"the job cannot go on without {', '.join(lost)}: {error}")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        raise
    finally:
        record.write_end(code)
    return code


def status(record: Record) -> Status:
    """Returns how a job stands."""
    if record.is_alive:
        logs = [log for *_, log in record.tasks.values()]
        return Status(RUNNING if any(map(os.path.exists, logs)) else STARTING)
    if not (end := record.end):
        return Status(ENDED, reason="its launcher was killed")
    return Status(ENDED, end["code"])


def follow(record: Record) -> Iterator[str]:
    """Yields what the launcher shows; if that is on a terminal, what the tasks write."""
    if record.output:
        tails = [Tail(record.output)]
    else:
        tails = tail.of_tasks({name: log for name, (*_, log) in record.tasks.items()})
    while True:
        is_alive = record.is_alive
        for each in tails:
            yield from each.lines()
        if not is_alive:
            break
        time.sleep(_MOMENT)
    for each in tails:
        yield from each.rest()


def logs(record: Record, task: str) -> Iterator[str]:
    """Yields the lines of a task's log file, which is on this machine."""
    if task not in record.tasks:
        raise EngineError(
            f"job {record.name} has no task {task!r}; it has {', '.join(record.tasks)}"
        )
    path = record.tasks[task][2]
    with contextlib.suppress(FileNotFoundError), open(path, errors="replace") as log:
        yield from (line.rstrip("\n") for line in log)


def cancel(record: Record) -> None:
    """Ends a job as Ctrl-C would, and with SIGKILL if that does not end it in time."""
    for signum, timeout in (
        (signal.SIGTERM, 2 * record.grace_period + _TEARDOWN_TIMEOUT),
        (signal.SIGKILL, record.grace_period + _TEARDOWN_TIMEOUT),
    ):
        if not record.is_alive:
            return
        record.signal(signum)
        deadline = time.monotonic() + timeout
        while record.is_alive and time.monotonic() < deadline:
            time.sleep(_MOMENT)
    if record.is_alive:
        raise EngineError(
            f"job {record.name} does not end: look at process {record.pid} and its children"
        )


def _tell(text: str) -> None:
    print(f"launch.ssh: {text}", file=sys.stderr, flush=True)
