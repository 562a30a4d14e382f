"""A supervisor, seen from the process that started it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from launch.job import Job
from launch.supervise.policy import describe_exit, exit_status
from launch.supervise.processes import check_platform

# Not `-m launch.supervise.supervisor`: the package need not be on the path, the first entry
# of which would be a directory of the user's. And `pkill -f launch.local` shall
# not hit it, for it has to survive the launcher to clean up after it.
_BOOT = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from launch.supervise.supervisor import main; main()"
)
_TEARDOWN_TIMEOUT = 30.0
_ROOT = str(Path(__file__).resolve().parents[2])


class Handle:
    """A running supervisor. The job ends when this process does, however it does.

    A job that is started from a thread that is not the main one lasts until
    `close`, or until this process has closed its files.

    Args:
        job: What the supervisor starts.

    Raises:
        PlatformError: If this machine does not run Linux.
    """

    def __init__(self, job: Job) -> None:
        check_platform()
        self._grace_period = job.grace_period
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, _ROOT, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        in_main_thread = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if in_main_thread else None
        request = {"job": job.to_json(), "parent": parent}
        # A supervisor that could not even begin is noticed by `wait`.
        with contextlib.suppress(BrokenPipeError):
            self._control.sendall(json.dumps(request).encode() + b"\n")
        self._events = self._control.makefile("rb")

    @property
    def pid(self) -> int:
        """The process id of the supervisor."""
        return self._process.pid

    def next_event(self) -> dict[str, Any]:
        """Waits for what the supervisor says next: `pids`, `error`, or {} at its end.

        The job's own time-outs bound the wait.
        """
        line = self._events.readline()
        return json.loads(line) if line else {}

    def signal(self, signum: int) -> None:
        """Sends a signal to the supervisor."""
        self._process.send_signal(signum)

    def wait(self) -> int:
        """Waits for the end of the job, and returns its exit status."""
        code = self._process.wait()
        if code < 0:
            print(f"launch: the supervisor {describe_exit(code)}", file=sys.stderr)
        return exit_status(code)

    def poll(self, timeout: float) -> int | None:
        """Waits for `timeout` seconds; the exit status of the job if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return exit_status(self._process.wait(timeout))
        return None

    def stop(self) -> None:
        """Ends the job, if it goes on; `next_event` goes on until it has."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends the job, if it goes on, and waits until no process is left."""
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
