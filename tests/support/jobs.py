"""Programs and jobs that a test runs to their end, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
from deadline import PROGRAM_DEADLINE, STARTUP_FLAG

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = Path(__file__).resolve().parent


def run(
    *command: str | Path,
    cwd: Path | None = None,
    status: int | None = 0,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python with a command, and returns its exit status and what it printed.

    Args:
        *command: A program, or `-m` and a module, and arguments.
        cwd: Where it runs.
        status: The exit status that it must have; None for any.
        **environ: More of the environment.
    """
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path_with(SUPPORT), **environ},
        capture_output=True,
        text=True,
        timeout=PROGRAM_DEADLINE,
        check=False,
    )
    said = done.stdout[-4000:] + done.stderr[-4000:]
    assert status is None or done.returncode == status, said
    return done


def path_with(*folders: Path) -> str:
    """Returns the PYTHONPATH of programs that import from more folders.

    A program that sets its path itself is not forked: each of its tasks imports TensorFlow.
    """
    # What `make check` tests is a wheel, which PYTHONPATH names.
    tested = os.environ.get("PYTHONPATH", str(ROOT))
    return os.pathsep.join([tested, *map(str, folders)])


def launch(
    *arguments: str | Path,
    cwd: Path | None = None,
    status: int | None = 0,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a job with `launch.local`; see `run`."""
    command = ("-m", "launch.local", STARTUP_FLAG)
    return run(*command, *arguments, cwd=cwd, status=status, **environ)


def with_environment(name: str, value: str) -> list[psutil.Process]:
    """Returns the processes in whose environment a variable has a value."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found.append(process)
        except psutil.Error:
            continue
    return found
