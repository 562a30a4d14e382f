"""A process of its own for a job: one that outlives the command, or one that guards it."""

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from launch.engines.engine import EngineError

# If this process is killed, the kernel closes the pipe: the input ends without a line.
_GUARD = 'read -r line || exec "$@"'


def noted_signals() -> list[int]:
    """Returns a list to which each signal of a user who ends this process is added."""
    signals: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        signals.append(signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, note)
    return signals


@contextlib.contextmanager
def guarded(command: Sequence[str]) -> Iterator[None]:
    """Runs a command if this process is killed, or leaves the context by an error."""
    guard = subprocess.Popen(
        ["sh", "-c", _GUARD, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin
    with guard.stdin:
        yield
        guard.stdin.write(b"\n")
    guard.wait()


def run(output: str, work: Callable[[Callable[[], None]], object]) -> None:
    """Starts a process that does the work, and waits until that says it has started.

    It says so by the function that it is called with. If it fails before, its message is
    raised here as an `EngineError`. `output` is the file of what the process prints.
    """
    ready, told = os.pipe()
    if child := os.fork():
        os.close(told)
        # It ends when the job has started or failed, or its process has died.
        with open(ready, "rb") as answer:
            problem = answer.read().decode()
        os.waitpid(child, 0)
        if problem:
            raise EngineError(problem)
        return
    # From here on, nothing may return into the caller's code.
    try:
        os.setsid()
        # The caller can reap its child at once, and this process can never get a
        # terminal.
        if os.fork():
            os._exit(0)
        os.close(ready)
        _redirect(output)
        with open(told, "wb", buffering=0) as answer:
            try:
                work(answer.close)
            except Exception as error:
                if answer.closed:
                    raise
                # Whatever it is, a job that has not started must not look like one.
                answer.write((str(error) or type(error).__name__).encode())
    except BaseException:
        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        os._exit(0)


def _redirect(output: str) -> None:
    sys.stdout.flush()
    with open(os.devnull, "rb") as nothing, open(output, "wb") as log:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
