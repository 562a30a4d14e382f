"""Processes of this package that end with the one that started them, as a supervisor."""

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.job.job import Job
from launch.supervise.policy import describe_exit, exit_status
from launch.supervise.processes import check_platform

# Not `-m`: the package may not be on the path, and -m would put the user's current
# directory first on it. And `pkill -f launch.local` must not match a supervisor, which has
# to survive the launcher to clean up after it.
_BOOT = "import sys; sys.path[0] = sys.argv.pop(1); from {} import main; main()"
_TEARDOWN_TIMEOUT = 30.0
_ROOT = str(Path(__file__).resolve().parents[2])


class Child:
    """A running module, whose `main` takes the request by `received`.

    Args:
        module: The module.
        request: What to do; only this process can write to the socket.
        keep: Files that stay open in it.
        patience: Seconds that it may take to end once its socket is closed.
        **options: For `subprocess.Popen`.
    """

    def __init__(
        self,
        module: str,
        request: Any,
        keep: Sequence[int],
        patience: float,
        **options: Any,
    ) -> None:
        self._patience = patience
        self._control, theirs = socket.socketpair()
        code, number = _BOOT.format(module), theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, _ROOT, str(number)],
                pass_fds=[number, *keep],
                # Ctrl-C does not reach it there: `foreground` passes the signal on.
                start_new_session=True,
                **options,
            )
        self.pid = self._process.pid
        # Whoever waits for it reports that it died before it could read the request.
        with contextlib.suppress(BrokenPipeError):
            self._control.sendall(pickle.dumps(request))
        self._events = self._control.makefile("rb")

    def next_event(self) -> dict[str, Any]:
        """Waits for its next event; {} at its end, also within an event."""
        with contextlib.suppress(ConnectionError, ValueError):
            return dict(json.loads(self._events.readline()))
        return {}

    def watch(
        self, happened: Callable[[Mapping[str, Any]], object]
    ) -> threading.Thread:
        """Calls `happened` with each event, in a thread that ends with the last."""

        def listen() -> None:
            for event in iter(self.next_event, {}):
                happened(event)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Ends it if it is running, and waits until it has ended."""
        # Closing is not enough: a process that has inherited the socket keeps it open.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        # A socket stays open as long as a file made from it, so close both.
        self._events.close()
        self._control.close()
        try:
            self._process.wait(self._patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def received() -> tuple[socket.socket, Any]:
    """Returns the socket of this process as a `Child`, and the request."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    with control.makefile("rb") as file:
        try:
            return control, pickle.load(file)
        except EOFError:
            os._exit(0)  # Nobody is there any more.


class Handle(Child):
    """A running supervisor. Its job ends when this process ends, for any reason.

    A job that is not started from the main thread ends with `close`, or when this
    process closes its files: the kernel's signal would come with the thread's death. Its
    events have `pids` or an `error`, and the job's own timeouts bound the wait for one.

    Args:
        job: The job.
        keep: Files that stay open until the last process of the job has ended.
        output: The file that the supervisor prints to; by default what this process does.

    Raises:
        PlatformError: If this machine does not run Linux.
    """

    def __init__(
        self, job: Job, keep: Sequence[int] = (), *, output: int | None = None
    ) -> None:
        check_platform()
        in_main_thread = threading.current_thread() is threading.main_thread()
        super().__init__(
            "launch.supervise.supervisor",
            (job, os.getpid() if in_main_thread else None),
            keep,
            job.grace_period + _TEARDOWN_TIMEOUT,
            stdout=output,
            stderr=output,
        )

    def signal(self, signum: int) -> None:
        """Sends a signal to the supervisor."""
        self._process.send_signal(signum)

    def wait(self) -> int:
        """Waits for the job to end, and returns its exit status."""
        code = self._process.wait()
        if code < 0:
            print(f"launch: the supervisor {describe_exit(code)}", file=sys.stderr)
        return exit_status(code)

    def poll(self, timeout: float) -> int | None:
        """Waits up to `timeout` seconds; returns the job's exit status if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return exit_status(self._process.wait(timeout))
        return None

    def stop(self) -> None:
        """Asks the job to end; `next_event` still returns its events until it has."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
