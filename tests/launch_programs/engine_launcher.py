"""Runs the commands of engines, and finds their tasks wherever on this machine they are."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .launcher import DEADLINE, ROOT, Launcher, marked, wait_for

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "mnist_cnn.py"
ELASTIC = Path(__file__).parent.parent / "programs" / "elastic.py"
PATIENCE = 250.0  # seconds


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

    def waiting(self, before="", until="over"):
        """A script that waits for a file, and ends with the status in it."""
        path = str(self.directory / until)
        return self.script(
            f"""\
import os, sys, time
{before}
print("ready", flush=True)
while not os.path.exists({path!r}):
    time.sleep(0.05)
sys.exit(int(open({path!r}).read() or 0))
""",
            f"until_{until}.py",
        )

    @property
    def over(self):
        """The file that `waiting` waits for."""
        return self.directory / "over"

    def finish(self, process):
        """Waits for the end of a job; returns all that it has shown."""
        try:
            return "".join(filter(None, process.communicate(timeout=PATIENCE)))
        except subprocess.TimeoutExpired as error:
            process.terminate()
            process.communicate(timeout=DEADLINE)
            pytest.fail(f"it does not end: {error.stdout} {error.stderr}")

    # What differs between engines, for the tests of engine_suite.py.

    engine = ""
    patient = (f"--startup_timeout={PATIENCE:g}", "--env=TF_CPP_MIN_LOG_LEVEL=3")
    """Flags for jobs that import TensorFlow."""
    small = ()
    """Flags for the other jobs."""
    chief_host = os.uname().nodename
    is_shipped = False
    runs_elsewhere = False
    """Whether the launcher is not the command itself, whose output is the launcher's then."""

    def check_places(self):
        """Checks where the tasks of a job run."""

    def check_running(self):
        """Checks what a job named `mine` has, beside its tasks, while it runs."""

    def is_gone(self):
        """Whether nothing is left at once when a job has been cancelled."""
        return not marked(self.mark)

    def lose(self, task):
        """Makes a task die; returns once its next process is there."""
        self.kill(task)

    def disturb(self, process):
        """Disturbs a job once more; returns a pattern of what it shows because of that."""
        return "recovered"

    def cut(self):
        """Ends the connection to a task; returns a pattern of its name."""
        raise NotImplementedError

    def jobs(self, *args):
        return subprocess.run(
            [*self.prefix, sys.executable, "-m", "launch.jobs", *args],
            env={**os.environ, "PYTHONPATH": ROOT, **self.environ},
            capture_output=True,
            text=True,
            timeout=4 * DEADLINE,
        )

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

        def is_over():
            return self.log("chief").count(line) >= times or process.poll() is not None

        wait_for(is_over, line, lambda: self.log("chief").decode(), PATIENCE)
        assert process.poll() is None, process.communicate()

    def wait_for_steps(self, who, log="chief"):
        """Waits until a later epoch of `ELASTIC` has steps of `one` worker, or `both`."""
        before, wanted = len(self._steps(log)), {"one": 1, "both": 2}[who]

        def have_worked():
            # The epoch before may have begun with other workers.
            later = self._steps(log)[before + 1 :]
            return wanted in [sum(each > 0 for each in steps) for steps in later]

        wait_for(have_worked, who, lambda: self.log(log)[-2000:], PATIENCE)

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
