"""Workers that come while `fit` runs, and workers that go away."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tf_config import Cluster, Task, TFConfig, contract

from ..support.addresses import free_addresses
from ..support.deadline import (
    DEADLINE,
    PROGRAM_DEADLINE,
    STARTUP_DEADLINE,
    STARTUP_FLAG,
)

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parents[1] / "programs" / "elastic.py"
STEPS = 40  # An epoch of the program.


class Tasks:
    """The tasks of a cluster, which a test starts and ends one by one."""

    def __init__(self, directory, num_workers, server=("-m", contract.SERVER_MODULE)):
        self.server = server
        addresses = free_addresses(num_workers + 2)
        self.cluster = Cluster(
            chief=addresses[:1], ps=addresses[1:2], worker=addresses[2:]
        )
        self.directory = directory
        self.marker = directory / "enough"
        self.processes = {}
        self.lines = []

    def start(self, *names):
        for name in names:
            self._start(name, *self.server)

    def _start(self, name, *argv):
        task = Task.parse(name)
        log = (self.directory / f"{task.job}-{task.index}.log").open("a")
        self.processes[name] = subprocess.Popen(
            [sys.executable, *map(str, argv)],
            env={
                **os.environ,
                "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
                "TF_CONFIG": TFConfig(self.cluster, task).to_json(),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                contract.MIN_WORKERS: "1",
            },
            stdout=subprocess.PIPE if task.job == "chief" else log,
            stderr=log,
            text=True,
        )
        log.close()

    def train(self, data, *kind):
        self._start("chief:0", PROGRAM, data, STEPS, self.marker, *kind)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.processes["chief:0"].stdout:
            self.lines.append(line.split())

    def log(self, name):
        return (self.directory / f"{name}.log").read_text()

    def wait_for_steps(self, *which):
        """Waits for an epoch whose report has more steps on these workers alone."""
        first, deadline = len(self.lines), time.monotonic() + STARTUP_DEADLINE
        while time.monotonic() < deadline:
            reports = [
                list(map(int, words[1:]))
                for words in self.lines[max(0, first - 1) :]
                if words[0] == "steps"
            ]
            if reports[1:]:
                last = reports[-1]
                grown = [i for i, n in enumerate(last) if n > 0]
                if grown == list(which):
                    return last
            assert self.processes["chief:0"].poll() is None, self.log("chief-0")
            time.sleep(0.1)
        raise AssertionError(
            f"no steps on {which}: {self.lines[-3:]}", self.log("chief-0")
        )

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def end(self):
        """Ends training; returns what the program has counted."""
        self.marker.touch()
        assert self.processes["chief:0"].wait(DEADLINE) == 0, self.log("chief-0")
        deadline = time.monotonic() + DEADLINE
        while self.lines[-1][0] != "reported" and time.monotonic() < deadline:
            time.sleep(0.05)
        return {" ".join(words[:-1]): int(words[-1]) for words in self.lines[-4:]}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.processes.values():
            process.kill()
            process.wait()
        if "chief:0" in self.processes:
            self.processes["chief:0"].stdout.close()


@pytest.mark.in_part("arrays")
@pytest.mark.cluster
@pytest.mark.parametrize("data", ["arrays", "endless"])
def test_workers_that_come_later_join_a_running_fit_and_every_step_runs_once(
    tmp_path, data
):
    with Tasks(tmp_path, 3) as tasks:
        tasks.start("ps:0", "worker:1")
        tasks.train(data)
        tasks.wait_for_steps(1)
        said = tasks.log("chief-0")
        assert "training starts with 1 of 3 workers (min_workers=1)" in said
        assert "join it: worker:0, worker:2" in said
        tasks.start("worker:2")
        tasks.wait_for_steps(1, 2)
        tasks.start("worker:0")
        tasks.wait_for_steps(0, 1, 2)
        counted = tasks.end()
        said = tasks.log("chief-0")
        assert re.search(r"worker:2 at \S+ takes part in training: 2 of 3", said)
        assert re.search(r"worker:0 at \S+ takes part in training: 3 of 3", said)
        assert "Traceback" not in said
        for name in ("worker-0", "worker-1", "worker-2"):
            assert "a step of this worker" in tasks.log(name)
    # No step was lost or ran twice when the cluster grew under it.
    assert counted["asked for"] > 0
    assert set(counted.values()) == {counted["asked for"]}


@pytest.mark.cluster
def test_workers_that_go_away_are_not_waited_for_and_others_still_join(tmp_path):
    with Tasks(tmp_path, 4) as tasks:
        tasks.start("ps:0", "worker:0", "worker:1")
        tasks.train("arrays")
        tasks.wait_for_steps(0, 1)
        # TensorFlow's own recovery would wait for the first, and let nobody in.
        tasks.kill("worker:0")
        tasks.wait_for_steps(1)
        tasks.start("worker:3")
        tasks.wait_for_steps(1, 3)
        tasks.kill("worker:1")
        tasks.start("worker:0")
        tasks.wait_for_steps(0, 3)
        # Far longer than a stall may take; nobody complains of those that are gone.
        time.sleep(25)
        tasks.wait_for_steps(0, 3)
        counted = tasks.end()
        said = tasks.log("chief-0")
    assert "no answer from a task" not in said
    # What a killed worker had under way runs again: one message each, of an epoch at most.
    again = 2 * STEPS
    for name in ("iterations", "weight"):
        assert counted["asked for"] <= counted[name] <= counted["asked for"] + again


@pytest.mark.cluster
def test_workers_with_several_devices_come_and_go_with_all_of_them(tmp_path):
    server = PROGRAM.with_name("server_with_devices.py"), "2"
    with Tasks(tmp_path, 2, server) as tasks:
        tasks.start("ps:0", "worker:1")
        tasks.train("endless", "CPU")
        tasks.wait_for_steps(1)
        tasks.start("worker:0")
        tasks.wait_for_steps(0, 1)
        tasks.kill("worker:1")
        tasks.wait_for_steps(0)
        tasks.start("worker:1")
        tasks.wait_for_steps(0, 1)
        counted = tasks.end()
    # Each of its two devices had a message under way, of an epoch at most.
    again = 2 * STEPS
    for name in ("iterations", "weight"):
        assert counted["asked for"] <= counted[name] <= counted["asked for"] + again


@pytest.mark.in_part
@pytest.mark.cluster
def test_a_stopped_worker_delays_nobody_who_joins_once_it_goes_on(tmp_path):
    with Tasks(tmp_path, 3) as tasks:
        tasks.start("ps:0", "worker:0", "worker:1")
        tasks.train("arrays")
        tasks.wait_for_steps(0, 1)
        tasks.processes["worker:0"].send_signal(signal.SIGSTOP)
        tasks.start("worker:2")
        time.sleep(5)
        tasks.processes["worker:0"].send_signal(signal.SIGCONT)
        tasks.wait_for_steps(0, 1, 2)
        counted = tasks.end()
    assert set(counted.values()) == {counted["asked for"]}


@pytest.mark.cluster
def test_the_launcher_gives_up_a_worker_and_the_program_goes_on(tmp_path):
    marker = tmp_path / "enough"
    command = [sys.executable, "-m", "launch.local", "--num_ps=1", "--num_workers=3"]
    command += ["--min_workers=2", "--max_restarts=0", f"--log_dir={tmp_path}/logs"]
    command.append(STARTUP_FLAG)
    with subprocess.Popen(
        [*command, PROGRAM, "arrays", str(STEPS), marker],
        env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        killed, after = 0, 0
        for line in process.stdout:
            steps = line.partition("steps ")[2].split()
            if not steps:
                continue
            if not killed and "0" not in steps:
                killed = server_of(process.pid, Task("worker", 1))
                os.kill(killed, signal.SIGKILL)
            after += killed and steps[1] == "0"
            if after == 20:
                marker.touch()
        _, errors = process.communicate(timeout=PROGRAM_DEADLINE)
    assert process.returncode == 0, errors
    assert (
        "worker:1 was killed by SIGKILL; not restarting it (--max_restarts): giving up "
        "worker:1; the job goes on with 2 of 3 workers (--min_workers=2)" in errors
    )


def server_of(launcher, task):
    """The process of a task of a launcher."""
    for child in psutil.Process(launcher).children(recursive=True):
        config = child.environ().get("TF_CONFIG")
        if config and TFConfig.from_json(config).task == task:
            return child.pid
    raise AssertionError(f"no process of {task}")
