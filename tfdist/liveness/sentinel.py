"""A process beside the chief that ends it when no thread of it runs any longer.

TensorFlow makes each function that is traced known to every task, and waits for their
answers with Python's lock in its hand. If a task is cut off at that moment, no thread of
Python can say so, the watchdog's neither. This file is run by itself there, and imports
nothing but the standard library, so that it starts in no time.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys

# A sentinel that was stopped together with its chief finds its time over when it goes on.
_SECOND_LOOK = 15.0
# Less than `select.PIPE_BUF`, so a pipe takes all of a line or nothing.
_LONGEST = 2000  # characters
_PIPE = 1 << 16  # bytes


class Sentinel:
    """Ends this process, unless it is told now and then that a thread still runs.

    Args:
        patience: For how many seconds it may be told nothing.
        second_look: For how many more it waits then.
    """

    def __init__(self, patience: float, second_look: float = _SECOND_LOOK) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-S", "-E", __file__),
                *map(str, (os.getpid(), patience, second_look)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not meant for it.
        )
        assert self._process.stdin
        # One that does not read must not hold up who tells it.
        os.set_blocking(self._process.stdin.fileno(), False)

    def tell(self, seen: str) -> None:
        """Tells it that this process runs, and is watched from now on.

        Args:
            seen: What it says if it has to end this process; its beginning, if that is
                of more than 2,000 characters.
        """
        self._write(seen[:_LONGEST])

    def pause(self) -> None:
        """Has it wait for ever, until it is told something."""
        self._write(None)

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _write(self, seen: str | None) -> None:
        assert self._process.stdin
        line = f"{json.dumps(seen, ensure_ascii=False)}\n".encode(errors="replace")
        # Somebody has ended it, or stopped it.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._process.stdin.fileno(), line)


def _watch(chief: int, patience: float, second_look: float) -> None:
    seen = None
    while _hears(None if seen is None else patience) or _hears(second_look):
        told = os.read(0, _PIPE)
        if not told:
            return
        seen = json.loads(told.splitlines()[-1])
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
