"""Runs the commands of engines, and finds their tasks wherever on this machine they are."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from .launcher import DEADLINE, ROOT, Launcher, marked, wait_for

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "mnist_cnn.py"
ELASTIC = Path(__file__).parent.parent / "programs" / "elastic.py"
PATIENCE = 250.0  # seconds
_TASK = re.compile(rb'"task":{"type":"(\w+)","index":(\d+)')


class EngineLauncher(Launcher):
    """Runs the command of an engine, which subclasses name.

    `environ` is what it and `launch.jobs` find in their environment, and `prefix` a
    command that runs another one.
    """

    def __init__(self, directory, environ=(), prefix=()):
        super().__init__(directory, prefix)
        self.environ = {"XDG_STATE_HOME": str(directory / "state"), **dict(environ)}

    def start(self, *args, **options):
        return super().start(*args, **{**self.environ, **options})

    def jobs(self, *args):
        return subprocess.run(
            [*self.prefix, sys.executable, "-m", "launch.jobs", *args],
            env={**os.environ, "PYTHONPATH": ROOT, **self.environ},
            capture_output=True,
            text=True,
            timeout=4 * DEADLINE,
        )

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

    def kill(self, task):
        """Kills a task, and returns once its next process is there."""
        victim = self.tasks()[task]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: self.tasks().get(task, victim) != victim, f"next {task}")

    def use_real_tfdist(self):
        """Lets the script import the library, in place of the stand-in."""
        shutil.rmtree(self.directory / "tfdist")

    def wait_for_epoch(self, epoch, process, times=1):
        """Waits until an epoch has begun, in the first run of the program or a later."""
        line = f"Epoch {epoch}/".encode()
        deadline = time.monotonic() + PATIENCE
        while self.log("chief").count(line) < times:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, self.log("chief").decode()
            time.sleep(0.1)

    def wait_for_steps(self, who, log="chief"):
        """Waits until a later epoch of `ELASTIC` has steps of `one` worker, or `both`."""
        deadline = time.monotonic() + PATIENCE
        before = len(self._steps(log))
        while True:
            # The one before may have begun with other workers.
            for steps in self._steps(log)[before + 1 :]:
                if sum(each > 0 for each in steps) == {"one": 1, "both": 2}[who]:
                    return
            assert time.monotonic() < deadline, self.log(log)[-2000:]
            time.sleep(0.1)

    def _steps(self, log):
        lines = re.findall(rb"^steps (.*)$", self.log(log), re.M)
        return [list(map(int, line.split())) for line in lines]

    def counted(self, log="chief"):
        """What `ELASTIC` has counted at its end."""
        found = re.findall(
            r"^(asked for|iterations|weight|reported) (\d+)$",
            self.log(log).decode(),
            re.M,
        )
        assert len(found) == 4, self.log(log)[-2000:]
        return {name: int(number) for name, number in found}
