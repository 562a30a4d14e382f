"""Which tasks count as stopped, and for how long."""

import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from launch.remote import host
from launch.supervise.running_tasks import StoppedTasks

TIMEOUT = 0.05  # seconds


@pytest.fixture
def process():
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
    ) as p:
        yield p
        p.kill()


def stop(process):
    process.send_signal(signal.SIGSTOP)
    while host.stop_of(process.pid) is None:
        time.sleep(0.001)
    return host.stop_of(process.pid)


def go_on(process):
    process.send_signal(signal.SIGCONT)
    while host.stop_of(process.pid) is not None:
        time.sleep(0.001)


def test_each_stop_differs(process):
    first = stop(process)
    assert host.stop_of(process.pid) == first
    go_on(process)
    assert stop(process) != first


def test_a_process_that_is_gone_is_not_stopped(process):
    process.kill()
    process.wait()
    assert host.stop_of(process.pid) is None


def test_a_task_that_runs_between_two_looks_is_not_killed(process):
    """It is stopped whenever somebody looks, and makes progress all the same."""
    killed, notices = [], []
    task = SimpleNamespace(
        pid=process.pid, plan=SimpleNamespace(name="worker:0"), signal=killed.append
    )
    tasks = SimpleNamespace(alive=[task])
    stopped = StoppedTasks(TIMEOUT, tasks, SimpleNamespace(notice=notices.append))
    for _ in range(4):
        stop(process)
        time.sleep(TIMEOUT)
        stopped.check()
        go_on(process)
    assert killed == []
    stop(process)
    while not killed:
        stopped.check()
        time.sleep(TIMEOUT / 2)
    assert killed == [signal.SIGKILL]
    (notice,) = notices
    assert "worker:0 has been stopped (SIGSTOP)" in notice
