"""A thread of the chief that detects stalled training and names the tasks it waits for.

TensorFlow waits without a deadline, and mostly where Python cannot interrupt it. So the
main thread waits for steps in slices, and raises the watchdog's error between them. If
the main thread is blocked inside TensorFlow, in a read of a variable or of the dataset,
the watchdog exits the process. If TensorFlow blocks while it holds the GIL, the watchdog
cannot run either, and its sentinel kills the process.
"""

import atexit
import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import InitVar, dataclass

import tf_config
from tf_config.contract import EXIT_RESTART, EXIT_STALLED
from tfdist._support.errors import Error
from tfdist.cluster.health import NO_ANSWER, StatusConnection, problem_of
from tfdist.cluster.liveness import stall, supervision
from tfdist.cluster.liveness.activity import DATA, Activity
from tfdist.cluster.liveness.sentinel import Sentinel
from tfdist.cluster.liveness.stall import Kind, Seen, Stall, Timeouts

_log = logging.getLogger("tfdist")

_LONGEST_INTERVAL = 5.0
# The time that the main thread has to raise an error before the process exits.
_SECONDS_TO_RAISE = 5.0
# Added to twice the timeout: how long the watchdog may be silent to its sentinel.
_SECONDS_FOR_THE_WATCHDOG = 60.0
# The time that a program has to exit after it raised the error.
_SECONDS_TO_END = 10.0


class StalledError(Error, RuntimeError):
    """Training has stalled: a task does not respond, or a step or a batch takes too long."""


@dataclass(eq=False)
class Watchdog:
    """Probes every server, and checks that steps finish.

    `on_stall` is one of `stall.ON_STALL`, or None. Tasks of `not_waited_for` need not
    answer now.
    """

    tasks: InitVar[Mapping[tf_config.Task, str]]
    activity: Activity
    timeouts: Timeouts
    on_stall: str | None = None
    end: Callable[[int], None] = os._exit
    not_waited_for: Callable[[], Collection[tf_config.Task]] = tuple

    def __post_init__(self, tasks: Mapping[tf_config.Task, str]) -> None:
        self._servers = {
            str(t): StatusConnection(address) for t, address in tasks.items()
        }
        self._addresses = {str(task): address for task, address in tasks.items()}
        self._silent: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        self._without_progress = 0.0
        self._finished = 0
        self._said: Stall | None = None
        self._error: StalledError | None = None
        self._raised = threading.Event()
        self._stopped = threading.Event()
        self._sentinel: Sentinel | None = None
        # At least five looks within each timeout.
        self._interval = min(_LONGEST_INTERVAL, min(self.timeouts) / 5)
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stops the watch."""
        self._stopped.set()

    def check(self) -> None:
        """Raises the watchdog's error in the calling thread."""
        error, self._error = self._error, None
        if error is not None:
            # `_raise` waits for this, and otherwise exits the process.
            self._raised.set()
            atexit.register(_end_in_time)
            raise error

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            before = time.monotonic()
            self._tell_sentinel()
            self._look()
            seen = self._seen()
            found = stall.stalled(seen, self.timeouts)
            if found is None:
                self._said = None
            else:
                self._act(found, seen)
            # If this process itself was stopped, that time does not count.
            spent = min(time.monotonic() - before, self._interval)
            self._count(spent + self._interval)
        if self._sentinel is not None:
            self._sentinel.close()

    def _tell_sentinel(self) -> None:
        is_needed = self.activity.working
        if is_needed and self._sentinel is None:
            with contextlib.suppress(
                OSError
            ):  # No process can be started: try again later.
                patience = 2 * max(self.timeouts) + _SECONDS_FOR_THE_WATCHDOG
                self._sentinel = Sentinel(patience)
        if self._sentinel is None:
            return
        if is_needed:
            self._sentinel.tell("\n".join(self._lines(self._seen())))
        else:
            self._sentinel.pause()

    def _look(self) -> None:
        # All are asked before any is waited for: deadlines run side by side.
        answers = {
            name: self._servers[name].ask(self._interval) for name in self._watched()
        }
        self._silent = {
            name: time for name, time in self._silent.items() if name in answers
        }
        for name, answer in answers.items():
            problem = problem_of(answer)
            if problem is None:
                self._silent.pop(name, None)
            else:
                self._silent.setdefault(name, 0.0)
                self._problems[name] = problem
        finished = sum(self.activity.finished.values())
        if finished != self._finished or not self.activity.under_way:
            self._without_progress = 0.0
        if finished != self._finished:
            # A program that trains again after the error is not exiting: cancel the timer.
            atexit.unregister(_end_in_time)
        self._finished = finished

    def _watched(self) -> list[str]:
        excused = {str(task) for task in self.not_waited_for()}
        return [name for name in self._servers if name not in excused]

    def _count(self, seconds: float) -> None:
        self._silent = {name: time + seconds for name, time in self._silent.items()}
        self._without_progress += seconds

    def _seen(self) -> Seen:
        return Seen(
            self.activity.working,
            dict(self._silent),
            self._without_progress,
            self.activity.waits(DATA),
            self.activity.busy,
        )

    def _act(self, found: Stall, seen: Seen) -> None:
        what = stall.action(found, self.on_stall, supervision.is_supervised())
        text = self._describe(found, seen)
        if what == stall.RESTART:
            self._restart(found, text)
        elif what == stall.RAISE:
            self._raise(text)
        else:
            self._warn(found, text)

    def _warn(self, found: Stall, text: str) -> None:
        if self._said != found:
            self._said = found
            _log.warning("%s", text)

    def _describe(self, found: Stall, seen: Seen) -> str:
        who = [f"{each} at {self._addresses[each]}" for each in found.tasks]
        is_task = found.kind is Kind.TASK
        timeout = self.timeouts.task if is_task else self.timeouts.step
        return "\n".join(
            [
                f"{found.kind.value} for {timeout:g} s"
                f"{': ' if who else ''}{', '.join(who)}",
                *self._lines(seen),
            ]
        )

    def _lines(self, seen: Seen) -> list[str]:
        """Returns the last known activity of each task."""
        watched = self._watched()
        lines = stall.lines(seen, self._problems, self.activity.finished, watched)
        away = [name for name in self._servers if name not in watched]
        return lines + [f"  {name}: is away, and not waited for" for name in away]

    def _restart(self, found: Stall, text: str) -> None:
        # No task to name, as with a slow pipeline: the chief itself is restarted.
        if not found.tasks:
            end_process(text, EXIT_RESTART, self.end)
            return
        # The supervisor already sees dead processes.
        ended = {t for t in self._silent if self._problems[t] != NO_ANSWER}
        tasks = [task for task in found.tasks if task not in ended]
        if not tasks:
            self._warn(found, text)
            return
        _log.warning("%s\nasking for %s to be started again", text, ", ".join(tasks))
        supervision.report_stalled(tasks, text)
        # A new process gets its full timeout.
        for task in tasks:
            self._silent.pop(task, None)
        self._without_progress = 0.0

    def _raise(self, text: str) -> None:
        self._raised.clear()
        self._error = StalledError(text)
        if not self._raised.wait(_SECONDS_TO_RAISE) and not self._stopped.is_set():
            end_process(text, EXIT_STALLED, self.end)


def end_process(text: str, status: int, end: Callable[[int], None] = os._exit) -> None:
    """Exits this process from a thread other than the main one."""
    print(
        f"tfdist: {text}\ntfdist: the main thread cannot be interrupted: ending "
        f"the process with status {status}",
        file=sys.stderr,
    )
    # `os._exit` flushes nothing.
    for handler in (*logging.getLogger().handlers, *_log.handlers):
        handler.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    end(status)


def _end_in_time() -> None:
    # On exit TensorFlow contacts every task, and waits for those that do not respond.
    # faulthandler's timer needs neither the main thread nor the interpreter.
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        faulthandler.dump_traceback_later(_SECONDS_TO_END, exit=True, file=nowhere)
