"""Runs `launch.local` on stand-ins, and knows which processes came of it."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import psutil
import pytest

import launch

from ..support.deadline import DEADLINE

PROGRAMS = Path(__file__).parent
ROOT = str(Path(launch.__file__).parent.parent)
COMMAND = (sys.executable, "-m", "launch.local")
_TASK = re.compile(rb'"task":{"type":"(\w+)","index":(\d+)')
SLEEP = "import time; print('ready', flush=True); time.sleep(600)"


def wait_for(condition, what, said=lambda: "", within=DEADLINE):
    """Waits until a condition is true; an error has what `said` returns by then."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} after {within:g} s: {said()}"
        time.sleep(0.05)
    return value


def ends_of_logs(directory):
    """The last words of all programs that log in a directory."""
    logs = [path for kind in ("*.out", "*.log") for path in directory.glob(kind)]
    return "\n".join(path.read_text()[-2000:] for path in logs)


def marked(mark):
    """The processes with the mark on their command line or in their environment."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            environ = (directory / "environ").read_bytes()
            text = environ + (directory / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in text:  # A zombie has neither.
            found.append(int(directory.name))
    return found


@contextlib.contextmanager
def small_cgroup():
    """Makes a cgroup with 0.4 GB of memory; yields the shell command that enters it."""
    root = Path("/sys/fs/cgroup/memory")
    name, limit = "memory.limit_in_bytes", 400 * 2**20
    if not root.exists():
        root, name = root.parent, "memory.max"
    group = root / f"tfdist-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / name).write_text(str(limit))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"cannot make a cgroup that limits memory: {error}")
    for swap, most in (("memory.memsw.limit_in_bytes", limit), ("memory.swap.max", 0)):
        if (group / swap).exists():
            (group / swap).write_text(str(most))
    yield f"echo $$ > {group}/cgroup.procs"
    wait_for(lambda: not (group / "cgroup.procs").read_text(), "end of the group")
    group.rmdir()


class Launcher:
    """Runs `python -m launch.local` in a directory where a stand-in is `tfdist`.

    `prefix` is a command that runs another one, its arguments.
    """

    # A fork server would import TensorFlow for seconds, and stand-ins need none.
    command = (*COMMAND, "--log_dir=logs", "--fork_server=off")

    def __init__(self, directory, prefix=()):
        self.prefix = prefix
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.directory = directory
        (directory / "tfdist").mkdir()
        (directory / "tfdist" / "__init__.py").touch()
        shutil.copy(PROGRAMS / "server.py", directory / "tfdist" / "server.py")

    def start(
        self, *args, stdout=subprocess.PIPE, start_new_session=False, **variables
    ):
        environ = {**os.environ, "PYTHONPATH": ROOT, "TEST_MARK": self.mark}
        environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
        self.process = subprocess.Popen(
            [*self.prefix, *self.command, *args],
            cwd=self.directory,
            env={**environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            start_new_session=start_new_session,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def run(self, *args, **variables):
        """Runs it to its end: its exit status, standard output and error."""
        process = self.start(*args, **variables)
        output, errors = process.communicate(timeout=DEADLINE)
        return process.returncode, output, errors

    def script(self, code, name="train.py"):
        (self.directory / name).write_text(textwrap.dedent(code))
        return name

    def log(self, name):
        path = self.directory / "logs" / f"{name}.log"
        return path.read_bytes() if path.exists() else b""

    def wait_for_log(self, name, text=b"ready"):
        try:
            wait_for(lambda: text in self.log(name), f"{text!r} in the log of {name}")
        except AssertionError as error:
            if self.process.poll() is None:
                raise
            # It has said why it ended.
            raise AssertionError(f"{error}: {self.process.communicate()}") from None

    def tasks(self):
        """The process of each task that runs, by its name."""
        found = {}
        for pid in marked(self.mark):
            # One that has just ended may still be in the list.
            with contextlib.suppress(OSError, psutil.Error):
                environ = Path(f"/proc/{pid}/environ").read_bytes().replace(b" ", b"")
                match = _TASK.search(environ)
                if match and psutil.Process(pid).ppid() not in found.values():
                    found[f"{match[1].decode()}:{match[2].decode()}"] = pid
        return found

    def wait_until_nothing_is_left(self):
        wait_for(lambda: not marked(self.mark), "end of the last process")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        left = marked(self.mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == []
