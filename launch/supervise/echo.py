"""Which lines the console shows when all tasks print the same.

In synchronous training every task prints the same summary and the same progress. The
console shows those of the first task, and only the warnings and errors of the others.
"""

import re
import time
from collections.abc import Callable, Sequence

from launch.console.keras_output import split_progress
from launch.plan import EVERY_TASK, TaskPlan
from launch.supervise.policy import leader

_TRACEBACK = re.compile(
    r"[\s+|]*(Exception Group )?Traceback \(most recent call last\):"
)
_TROUBLE = re.compile(
    # Log lines of Python, absl and TensorFlow's C++ code.
    r"(WARNING|ERROR|CRITICAL|FATAL)\b"
    r"|[WEF][0-9]{4} [0-9:.]+ +[0-9]+ \S+:[0-9]+\] "
    # Lines of the module `warnings`.
    r"|\S.*:[0-9]+: \w*Warning: "
)
_STAMP = re.compile(r"[WEF][0-9]{4} [0-9:.]+ +[0-9]+ ")
_MOMENT = 2.0
_MOST_KNOWN = 1000


def quiet_tasks(kind: str, plans: Sequence[TaskPlan]) -> frozenset[str]:
    """Returns the names of the tasks that print the same as the leader.

    That is every other task of a job without ps in which every task runs the script.
    With ps, the workers of TF1 and Estimator programs train separately, and servers
    print other things. So does an evaluator.
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
    """Passes on lines; from quiet tasks, only warnings and errors that no other prints.

    A warning or traceback of a quiet task waits a moment, since the first task may print
    it too. Each is shown once; the log files have all of them.

    Args:
        show: Shows a line of a task, given the task's name.
        quiet: The names of the quiet tasks.
        clock: Returns the time in seconds.
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
        # A dict, since a set does not know which entry is the oldest.
        self._known: dict[str, None] = {}

    @property
    def waiting(self) -> bool:
        """Whether `tick` must be called soon."""
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
        """Shows what has waited long enough."""
        now = self._clock()
        for key, (since, _, _) in list(self._waiting.items()):
            if now - since >= _MOMENT:
                self._release(key)

    def drop(self, name: str) -> None:
        """Forgets the lines of a task that wait: the end of its log is shown instead."""
        self._reading.pop(name, None)
        self._waiting = {k: v for k, v in self._waiting.items() if v[1] != name}

    def close(self) -> None:
        """Shows what is still waiting, at the end of the job."""
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
    """Finds warnings and tracebacks in the output of a task."""

    def __init__(self) -> None:
        self._traceback: list[str] = []
        self._warning: list[str] = []

    def feed(self, line: str) -> list[str] | None:
        """Takes a line.

        Returns:
            A traceback that the line ends, or a warning that it begins: indented lines
            that follow are added to the same list.
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
        """Removes and returns the unfinished traceback."""
        traceback, self._traceback = self._traceback, []
        # Ctrl-C ends a task with this traceback, which is not an error.
        return [] if traceback[-1:] == ["KeyboardInterrupt"] else traceback


def _key(lines: Sequence[str]) -> str:
    # The same message has another time and thread id in the log of each task.
    return _STAMP.sub("", "\n".join(lines))
