"""A fork server that hangs costs the time of an import, and nothing else."""

import contextlib
import os
import sys

import psutil
import pytest

import launch
from launch.supervise import fork_server, processes
from launch.supervise.event_loop import EventLoop
from launch.supervise.fork_server import ForkServer
from launch.supervise.running_tasks import RunningTasks
from launch.supervise.starter import LocalProcess
from tf_config import contract

from ..launch_programs.launcher import PROGRAMS, ROOT
from ..support.processes import still_running

ARGV = (sys.executable, "train.py")


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contract, "FORK_SERVER_MODULE", "hung_fork_server")
    monkeypatch.setattr(fork_server, "_ANSWER_TIMEOUT", 1.0)
    (tmp_path / "train.py").write_text("open('began', 'w').close()")
    with open("log", "wb") as log:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{PROGRAMS}"}
        server = ForkServer(sys.executable, env, log)
    yield server
    server.close("the test is over")


def test_what_it_forked_in_silence_never_begins(server, tmp_path):
    server.hear()
    assert server.problem == ""
    hung = psutil.Process(server.pid)
    nothing = os.open(os.devnull, os.O_RDWR)
    files = dict.fromkeys((0, 1, 2), nothing)
    answer = server.fork(ARGV, os.environ, files)
    assert (answer.pid, answer.problem) == (0, "the fork server has ended, or hung")
    word, pid = (tmp_path / "log").read_text().split()
    assert word == "forked"
    with contextlib.suppress(psutil.NoSuchProcess):
        assert still_running([psutil.Process(int(pid))]) == []
    os.waitpid(hung.pid, 0)
    assert still_running([hung]) == []
    assert not (tmp_path / "began").exists()
    # The next task is not asked for.
    assert server.fork(ARGV, os.environ, files).pid == 0
    os.close(nothing)


class Twice:
    """Starts two processes; the next one cannot be started."""

    pids = ()

    def __init__(self):
        self.left = 2

    def start(self, plan, *, output, reports, inherit_stdin=False):
        if not self.left:
            raise OSError("no memory")
        self.left -= 1
        return LocalProcess(
            processes.spawn([sys.executable, "-c", ""], os.environ, output=output)
        )


class Ignores:
    """Takes the place of whatever only looks at a job."""

    def __getattr__(self, name):
        return lambda *_: None


def test_a_task_that_cannot_be_started_again_is_a_verdict(tmp_path):
    job = launch.make_job(
        launch.local_cluster(1, 1),
        launch.Program("train.py"),
        log_dir=str(tmp_path),
    )
    nobody = Ignores()
    tasks = RunningTasks(job, EventLoop(), nobody, nobody, Twice(), nobody)
    servers = [each for each in job.plans if each.is_server]
    before = open_files()
    assert tasks.start(servers) is None
    for process in tasks:
        os.waitpid(process.pid, 0)
        process.ended(processes.Exit(process.pid, 1, 0.0))
    verdict = tasks.start(servers[:1])
    assert verdict
    assert verdict.reason == "cannot start ps:0: no memory"
    tasks.close()
    assert open_files() == before


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
