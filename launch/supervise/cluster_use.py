"""Whether a script uses the cluster that was started for it: pure decisions.

A script that does not know about the cluster, such as one with
`tf.distribute.MirroredStrategy` or without any strategy, trains separately in each process
that runs it, while the other tasks stay idle. Nothing fails, so nobody would notice. But
a script that does use its cluster connects to another task, or listens on its own port,
before it trains.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from launch.console.keras_output import is_training
from launch.plan import TaskPlan, task_name
from tf_config import Task

PATIENCE_SECONDS, PATIENCE_CPU_SECONDS = 60.0, 30.0
"""How long TensorFlow must compute without the cluster before a warning."""

_MOST_NAMES = 4


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
    """Returns whether a task has connected to the cluster, or to another task.

    Evidence is a connection to a port of the cluster, a task that runs the script and
    listens on its port, or a connection between two tasks on any port. A server listens
    whether or not it is used.

    Args:
        sockets: All sockets on this machine.
        plans: Every task of the job, on this machine.
        pids: The process ids of the tasks.
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

    Args:
        plans: Every task of the job.
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
        self._computing: dict[Task, tuple[float, float]] = {}

    @property
    def is_open(self) -> bool:
        """Whether it is still unknown if the cluster is used."""
        return not self._used and len(self._scripts) >= self._least

    def hear(self, task: Task, line: str) -> None:
        """Takes a line of a task's output."""
        if self.is_open and task in self._scripts and is_training(line):
            self._training.add(task)

    def see(self, used: bool, computing: Mapping[Task, float], now: float) -> str:
        """Takes an observation of the tasks; returns what to tell the user, or ''.

        Args:
            used: The result of `is_used`.
            computing: The CPU seconds of each task in which TensorFlow has run an
                operation.
            now: The time, in seconds on a steady clock.
        """
        if not self.is_open:
            return ""
        if used:
            self._used = True
            return "the program uses the cluster after all" if self._warned else ""
        for task, cpu in computing.items():
            if task in self._scripts:
                self._computing.setdefault(task, (now, cpu))
        late = {
            task
            for task, (since, cpu) in self._computing.items()
            if now - since >= PATIENCE_SECONDS
            and computing.get(task, 0.0) - cpu >= PATIENCE_CPU_SECONDS
        }
        if self._warned or len(self._training | late) < self._least:
            return ""
        self._warned = True
        return f"WARNING: {self._describe(over=False)}"

    def finish(self, used: bool) -> None:
        """Takes the last observation, after the end of the script."""
        self._used |= used

    def conclusion(self, status: int) -> str:
        """Returns the conclusion for the closing table, or ''.

        Args:
            status: The exit status of the job. A script that failed may have failed
                before it could use the cluster.
        """
        if not self.is_open or len(self._alone) < self._least:
            return ""
        return self._describe(over=True) if status == 0 or self._warned else ""

    def note(self, task: Task, status: int) -> str:
        """Returns the conclusion about one task as a word, or ''."""
        if not self.conclusion(status):
            return ""
        if task in self._servers:
            return "idle"
        return "alone" if task in self._alone else ""

    @property
    def _alone(self) -> list[Task]:
        found = self._training | self._computing.keys()
        return [task for task in self._scripts if task in found]

    def _describe(self, over: bool) -> str:
        certain = len(self._training) >= self._least
        did = "trained" if certain else "computed"
        does = did if over else "trains" if certain else "computes"
        if self._servers:
            seen = (
                f"the {_count(self._servers)} {'were' if over else 'are'} idle: "
                f"{_names(self._alone)} {does} by itself, and "
                f"{'never' if over else 'has not'} connected to any of them"
            )
        else:
            what = f"{does} a model of its own" if certain else f"{does} by itself"
            seen = (
                f"{_names(self._alone)} {'never' if over else 'have not'} connected to "
                f"each other: each {what}"
            )
        return f"{seen}. {self._advice()}"

    def _advice(self) -> str:
        one = "to train in one process, start it with --num_ps=0 --num_workers=1"
        if not self._servers and "ps" in self._jobs:
            return (
                "To train one model on all of them, start a tf.distribute.Server in "
                "each, or use tfdist.ParameterServerStrategy() without "
                f"--program=every_task; {one}"
            )
        strategy = "MultiWorkerMirroredStrategy"
        if self._servers:
            strategy = (
                "ParameterServerStrategy" if "ps" in self._jobs else "RingStrategy"
            )
        return (
            f"To train on the cluster, let the script use tfdist.{strategy}(), not "
            f"tf.distribute.MirroredStrategy() or no strategy at all; {one}"
        )


def _names(tasks: Sequence[Task]) -> str:
    if len(tasks) > _MOST_NAMES:
        return f"the {_count(tasks)}"
    return _join([task_name(task) for task in tasks])


def _count(tasks: Sequence[Task]) -> str:
    """Counts tasks, for example as `2 ps and 1 worker`."""
    counts = Counter(task.job for task in tasks)
    return _join(
        [
            f"{count} {job}{'s' if job == 'worker' and count > 1 else ''}"
            for job, count in counts.items()
        ]
    )


def _join(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
