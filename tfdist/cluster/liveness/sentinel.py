"""A companion process that kills the chief if all of its threads are blocked.

TensorFlow registers each traced function with every task, and waits for their answers
while it holds the GIL. If a task is cut off at that moment, no Python thread of the chief
runs, the watchdog's included. This file is that process's program. It imports only the
standard library, so that it starts quickly.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys

# If both processes were stopped, the sentinel may continue first and find its time over.
_SECOND_LOOK = 15.0
# Less than `select.PIPE_BUF`, so that a write is all or nothing.
_LONGEST = 2000  # characters
_PIPE = 1 << 16  # bytes


class Sentinel:
    """Kills this process unless it hears regularly that a thread still runs.

    It may hear nothing for `patience` seconds, and then waits for `second_look` more.
    """

    def __init__(self, patience: float, second_look: float = _SECOND_LOOK) -> None:
        self._process = subprocess.Popen(
            [
                # Without site-packages and PYTHON* variables, it starts quickly and
                # runs nothing else.
                *(sys.executable, "-S", "-E", __file__),
                *map(str, (os.getpid(), patience, second_look)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C would end it before its chief.
        )
        assert self._process.stdin
        # A sentinel that does not read must not block the watchdog.
        os.set_blocking(self._process.stdin.fileno(), False)

    def tell(self, seen: str) -> None:
        """Reports that this process runs, and starts the watch.

        If it kills this process, it prints the first 2,000 characters of `seen`.
        """
        self._write(seen[:_LONGEST])

    def pause(self) -> None:
        """Suspends the watch until the next `tell`."""
        self._write(None)

    def close(self) -> None:
        """Stops the sentinel."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _write(self, seen: str | None) -> None:
        assert self._process.stdin
        line = f"{json.dumps(seen, ensure_ascii=False)}\n".encode(errors="replace")
        # The sentinel was killed or stopped by someone else.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._process.stdin.fileno(), line)


def _watch(chief: int, patience: float, second_look: float) -> None:
    seen = None
    # None waits forever: before the first `tell`, and in a pause.
    while _hears(None if seen is None else patience) or _hears(second_look):
        told = os.read(0, _PIPE)
        # The chief has closed the pipe, or has exited.
        if not told:
            return
        # Several messages may have queued while this process was stopped.
        seen = json.loads(told.splitlines()[-1])
    # The number of a chief that has exited may belong to another process by now.
    if os.getppid() == chief:
        print(
            f"tfdist: no thread of this program has run for {patience:g} s: TensorFlow "
            "waits for a task, and does not let Python go on. Last seen:\n"
            f"{seen}\ntfdist: ending the process by SIGKILL",
            file=sys.stderr,
            flush=True,
        )
        os.kill(chief, signal.SIGKILL)


def _hears(seconds: float | None) -> bool:
    return bool(select.select([0], [], [], seconds)[0])


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
