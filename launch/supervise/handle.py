"""The side of a supervisor in the process that started it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.job.job import Job
from launch.supervise.policy import describe_exit, exit_status
from launch.supervise.processes import check_platform

# Not `-m launch.supervise.supervisor`: the package may not be on the path, and -m would
# put the user's current directory first on it. And `pkill -f launch.local` must not match
# the supervisor, which has to survive the launcher to clean up after it.
_BOOT = "import sys; sys.path[0] = sys.argv.pop(1); from {} import main; main()"
_TEARDOWN_TIMEOUT = 30.0
_ROOT = str(Path(__file__).resolve().parents[2])


def command(module: str, control: socket.socket) -> list[str]:
    """Returns the command that runs a module of ours with one end of a socket."""
    return [sys.executable, "-c", _BOOT.format(module), _ROOT, str(control.fileno())]


class Handle:
    """A running supervisor. Its job ends when this process ends, for any reason.

    A job that is not started from the main thread ends with `close`, or when this
    process closes its files: the kernel's signal would come with the thread's death.

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
        self._grace_period = job.grace_period
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command("launch.supervise.supervisor", theirs),
                pass_fds=[theirs.fileno(), *keep],
                # Ctrl-C does not reach it there: `foreground` passes the signal on.
                start_new_session=True,
                stdout=output,
                stderr=output,
            )
        in_main_thread = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if in_main_thread else None
        request = {"job": job.to_json(), "parent": parent}
        # `wait` reports a supervisor that died before it could read the request.
        with contextlib.suppress(BrokenPipeError):
            self._control.sendall(json.dumps(request).encode() + b"\n")
        self._events = self._control.makefile("rb")

    @property
    def pid(self) -> int:
        """The process id of the supervisor."""
        return self._process.pid

    def next_event(self) -> dict[str, Any]:
        """Waits for the supervisor's next event: `pids`, `error`, or {} at its end.

        The job's own timeouts bound the wait.
        """
        line = self._events.readline()
        return json.loads(line) if line else {}

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

    def close(self) -> None:
        """Ends the job if it is running, and waits until no process is left."""
        # A socket stays open as long as a file made from it, so close both.
        self._events.close()
        self._control.close()
        try:
            self._process.wait(self._grace_period + _TEARDOWN_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
