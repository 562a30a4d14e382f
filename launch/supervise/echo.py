"""Which lines of the tasks the console shows, where all do the same.

In synchronous training every task prints the same summary and the same progress. The
console shows the first task's; of the others, only what they warn of, and errors.
"""

import re
import time
from collections.abc import Callable, Sequence

from launch.console.keras_progress import split_progress
from launch.plan import EVERY_TASK, TaskPlan
from launch.supervise.policy import leader

_TRACEBACK = re.compile(
    r"[\s+|]*(Exception Group )?Traceback \(most recent call last\):"
)
_TROUBLE = re.compile(
    # Of logging, as Python, absl and TensorFlow's C++ code write it.
    r"(WARNING|ERROR|CRITICAL|FATAL)\b"
    r"|[WEF][0-9]{4} [0-9:.]+ +[0-9]+ \S+:[0-9]+\] "
    # Of the module `warnings`.
    r"|\S.*:[0-9]+: \w*Warning: "
)
_STAMP = re.compile(r"[WEF][0-9]{4} [0-9:.]+ +[0-9]+ ")
_MOMENT = 2.0
_MOST_KNOWN = 1000


def quiet_tasks(kind: str, plans: Sequence[TaskPlan]) -> frozenset[str]:
    """The names of the tasks whose output is another's over again.

    These are those of a job without ps in which every task runs the script, but for the
    leader. With ps, workers of TF1 and of Estimator train apart, and servers print
    what nobody else does. An evaluator does other work, too.
    """
    first = leader(plans)
    if kind != EVERY_TASK or any(plan.task.job == "ps" for plan in plans):
        return frozenset()
    return frozenset(
        plan.name
        for plan in plans
        if plan.task != first and plan.task.job != "evaluator"
    )


class Echo:
    """Passes on the lines of tasks, and of the quiet ones only what nobody else says.

    A warning or a traceback waits a moment, for it may be the first task's too. It is
    shown once, whoever says it: in full in the log of each.

    Args:
        show: Shows a line of a task, by its name.
        quiet: The names of the quiet tasks.
        clock: In seconds.
    """

    def __init__(
        self,
        show: Callable[[str, str], None],
        quiet: frozenset[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._quiet = quiet
        self._clock = clock
        self._reading: dict[str, _Reader] = {}
        self._waiting: dict[str, tuple[float, str, list[str]]] = {}
        self._known: dict[str, None] = {}

    @property
    def waiting(self) -> bool:
        """Whether `tick` has to be called in a while."""
        return bool(self._waiting)

    def line(self, name: str, text: str) -> None:
        """Takes a line of a task."""
        is_quiet = name in self._quiet
        if not is_quiet:
            self._show(name, text)
        if not self._quiet:
            return
        trouble = self._reading.setdefault(name, _Reader()).feed(text)
        if trouble is None:
            return
        key = _key(trouble)
        if not is_quiet:
            self._waiting.pop(key, None)
            self._know(key)
        elif key not in self._known:
            self._waiting.setdefault(key, (self._clock(), name, trouble))

    def tick(self) -> None:
        """Shows what has waited for a moment."""
        now = self._clock()
        for key, (since, _, _) in list(self._waiting.items()):
            if now - since >= _MOMENT:
                self._release(key)

    def drop(self, name: str) -> None:
        """Forgets what a task has said that is not shown yet: its log will be."""
        self._reading.pop(name, None)
        self._waiting = {k: v for k, v in self._waiting.items() if v[1] != name}

    def close(self) -> None:
        """Shows what still waits, at the end of the job."""
        for key in list(self._waiting):
            self._release(key)
        for name in self._quiet & self._reading.keys():
            for line in self._reading[name].rest():
                self._show(name, line)

    def _release(self, key: str) -> None:
        _, name, lines = self._waiting.pop(key)
        self._know(key)
        for line in lines:
            self._show(name, line)

    def _know(self, key: str) -> None:
        self._known[key] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]


class _Reader:
    """Finds warnings and tracebacks in what a task prints."""

    def __init__(self) -> None:
        self._traceback: list[str] = []
        self._warning: list[str] = []

    def feed(self, line: str) -> list[str] | None:
        """Takes a line.

        Returns:
            A traceback that it ends, or a warning that it begins: the lines indented
            below that will be in the same list.
        """
        _, line = split_progress(line)
        indented = line[:1].isspace()
        if self._traceback:
            self._traceback.append(line)
            return None if indented or not line else self.rest() or None
        if indented and self._warning:
            self._warning.append(line)
            return None
        self._warning = []
        if _TRACEBACK.match(line):
            self._traceback = [line]
        elif _TROUBLE.match(line):
            self._warning = [line]
            return self._warning
        return None

    def rest(self) -> list[str]:
        """Takes out the traceback that has not ended."""
        traceback, self._traceback = self._traceback, []
        # Of a task that was told to end, and did.
        return [] if traceback[-1:] == ["KeyboardInterrupt"] else traceback


def _key(lines: Sequence[str]) -> str:
    return _STAMP.sub("", "\n".join(lines))
