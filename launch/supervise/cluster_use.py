"""Detects whether a script uses the cluster that was started for it.

A script that does not know about the cluster, such as one with
`tf.distribute.MirroredStrategy` or without any strategy, trains separately in each process
that runs it, while the other tasks stay idle. Nothing fails, so nobody would notice. But
a script that does use its cluster connects to another task, or listens on its own port,
before it trains. That it trains, Keras's output says.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from launch.console.console import Console
from launch.console.keras_output import is_training
from launch.job.plan import TaskPlan
from tf_config import Task

_SECONDS_BETWEEN_LOOKS = 1.0


class Socket(NamedTuple):
    """A TCP socket on this machine, in any state, including closed ones.

    Attributes:
        pid: The process that has it open; None if there is none.
        local: Its local port.
        remote: The port at the other end; None if it listens.
    """

    pid: int | None
    local: int
    remote: int | None


def is_used(
    sockets: Iterable[Socket], plans: Sequence[TaskPlan], pids: Collection[int]
) -> bool:
    """Returns True if a task has connected to the cluster, or to another task.

    Evidence is a connection to a port of the cluster, a task that runs the script and
    listens on its port, or a connection between two tasks on any port. A server listens
    whether or not it is used.
    """
    ports = {plan.port for plan in plans}
    servers = {plan.port for plan in plans if plan.is_server}
    ends: dict[tuple[int, int], int] = {}
    for pid, local, remote in sockets:
        if remote is None:
            if local in ports - servers:
                return True
            continue
        if local in ports or remote in ports:
            return True
        if pid is not None and pid in pids:
            # A process that connects to itself is no evidence.
            if ends.get((remote, local), pid) != pid:
                return True
            ends[local, remote] = pid
    return False


class ClusterUse:
    """Detects tasks that run the script and train without the cluster.

    If the other tasks are servers, one such task is enough, since the servers wait for
    it. If every task runs the script, it takes two: the same model is trained twice. An
    evaluator does not count, since it always works alone.
    """

    def __init__(self, plans: Sequence[TaskPlan]) -> None:
        self._jobs = {plan.task.job for plan in plans}
        self._servers = [plan.task for plan in plans if plan.is_server]
        self._scripts = [
            plan.task
            for plan in plans
            if not plan.is_server and plan.task.job != "evaluator"
        ]
        self._least = 1 if self._servers else 2
        self._used = False
        self._warned = False
        self._training: set[Task] = set()

    @property
    def is_open(self) -> bool:
        """True if it is still unknown whether the cluster is used."""
        return not self._used and len(self._scripts) >= self._least

    def hear(self, task: Task, line: str) -> None:
        """Takes a line of a task's output."""
        if self.is_open and task in self._scripts and is_training(line):
            self._training.add(task)

    def see(self, used: bool) -> str:
        """Takes the result of `is_used`; returns what to tell the user, or ''."""
        if not self.is_open:
            return ""
        if used:
            self._used = True
            return "the program uses the cluster after all" if self._warned else ""
        if self._warned or len(self._training) < self._least:
            return ""
        self._warned = True
        return f"WARNING: {self._finding}"

    def finish(self, used: bool) -> None:
        """Takes the last observation, after the end of the script."""
        self._used |= used

    def conclusion(self, status: int) -> str:
        """Returns the conclusion for the closing table, or ''."""
        if not self.is_open or len(self._alone) < self._least:
            return ""
        return self._finding if status == 0 or self._warned else ""

    def note(self, task: Task, status: int) -> str:
        """Returns the conclusion about one task as a word, or ''."""
        if not self.conclusion(status):
            return ""
        return "idle" if task in self._servers else "alone" * (task in self._alone)

    @property
    def _alone(self) -> list[Task]:
        return [task for task in self._scripts if task in self._training]

    @property
    def _finding(self) -> str:
        one = "to train in one process, start it with --num_ps=0 --num_workers=1"
        if self._servers:
            finding = (
                f"{_count(self._servers)} are idle: {_count(self._alone)} trains by "
                "itself, and has not connected to any of them"
            )
            strategy = "ParameterServer" if "ps" in self._jobs else "Ring"
        else:
            finding = (
                f"{_count(self._alone)} have not connected to each other: each trains a "
                "model of its own"
            )
            strategy = "MultiWorkerMirrored"
            if "ps" in self._jobs:
                return (
                    f"{finding}. To train one model on all of them, start a "
                    "tf.distribute.Server in each, or use "
                    "tfdist.ParameterServerStrategy() without --program=every_task; "
                    f"{one}"
                )
        return (
            f"{finding}. To train on the cluster, let the script use "
            f"tfdist.{strategy}Strategy(), not tf.distribute.MirroredStrategy() or no "
            f"strategy at all; {one}"
        )


def _count(tasks: Sequence[Task]) -> str:
    """Counts tasks: `the 2 ps and 1 worker`, `the chief`."""
    counts = Counter(task.job for task in tasks)
    words = [
        job if job == "chief" else f"{n} {job}{'s' * (job == 'worker' and n > 1)}"
        for job, n in counts.items()
    ]
    return f"the {' and '.join(words)}"


@dataclass(eq=False)
class ClusterWatch:
    """Looks while a job runs, and warns of a program that trains without its cluster."""

    _use: ClusterUse
    _plans: Sequence[TaskPlan]
    _pids: Callable[[], Collection[int]]
    _console: Console
    _looked: float = 0.0

    @property
    def interval(self) -> float:
        """The interval between calls of `check`, in seconds."""
        return _SECONDS_BETWEEN_LOOKS if self._use.is_open else math.inf

    def check(self) -> None:
        """Looks at the tasks' sockets, if it is time."""
        now = time.monotonic()
        # The loop runs every check after every event.
        if now - self._looked < self.interval:
            return
        self._looked = now
        used = self._is_used(self._pids())
        if notice := self._use.see(used):
            self._console.notice(notice)

    def finish(self) -> None:
        """Looks once more when the program has ended.

        A closed connection stays visible for another minute, so none is missed.
        """
        if self._use.is_open:
            # No process ids: a closed connection has no process, so only its ports can
            # tell.
            self._use.finish(self._is_used(set()))

    def _is_used(self, pids: Collection[int]) -> bool:
        if any(plan.remote for plan in self._plans):
            return True  # Nobody sees the sockets of other hosts.
        with contextlib.suppress(psutil.Error):
            return is_used(_sockets(), self._plans, pids)
        return True  # Unknown: no warning is better than a wrong one.


def _sockets() -> list[Socket]:
    return [
        Socket(each.pid, each.laddr.port, each.raddr.port if each.raddr else None)
        for each in psutil.net_connections("tcp")
        if each.laddr
    ]
