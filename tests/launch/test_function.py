"""`launch.run`: a function on a cluster of stand-ins, called from Python."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import launch

from ..launch_programs.launcher import PROGRAMS, ROOT, marked, wait_for
from ..support.deadline import DEADLINE

SERVER = (str(PROGRAMS / "server.py"),)


@pytest.fixture
def call(launcher, monkeypatch, tmp_path):
    """`launch.run` on one stand-in of each kind, unless the test asks for others."""
    monkeypatch.setenv("TEST_MARK", launcher.mark)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    own = {"server": SERVER, "log_dir": str(tmp_path), "fork_server": "off"}

    def call(function, *args, num_ps=1, num_workers=1, **options):
        counts = {"num_ps": num_ps, "num_workers": num_workers}
        try:
            return launch.run(function, *args, **counts, **own, **options)
        finally:
            assert marked(launcher.mark) == []

    return call


def test_the_result_comes_back_and_the_output_is_shown(call, capsys):
    factor = 3

    def train(epochs, *, rate):
        import os

        print("training with", epochs)
        return {"cost": factor * epochs * rate, "pid": os.getpid()}

    result = call(functools.partial(train, rate=2), 5)
    assert result["cost"] == 30
    assert result["pid"] != os.getpid()
    output = capsys.readouterr().out
    assert "[chief]    training with 5\n" in output
    assert "[worker:0] hello from worker:0\n" in output


def test_a_lambda_of_several_calls(call):
    assert [call(lambda x: x**2, each, num_ps=0) for each in (2, 3)] == [4, 9]


def test_an_object_is_of_the_class_that_it_was_here(call):
    class Settings:
        def __init__(self, rate):
            self.rate = rate

    result = call(lambda given: Settings(given.rate + 1), Settings(1), num_ps=0)
    assert type(result) is Settings
    assert result.rate == 2


def test_an_error_is_the_users_own_with_its_traceback(call, capsys):
    class DivergedError(Exception):
        pass

    def step():
        raise DivergedError("the loss is nan")

    def train():
        step()

    with pytest.raises(DivergedError) as caught:
        call(train)
    text = str(caught.value.__cause__)
    assert text.startswith("in chief:\n\nTraceback (most recent call last):\n")
    assert 'raise DivergedError("the loss is nan")' in text
    assert "function_call.py" not in text
    assert "chief exited with status 1" in capsys.readouterr().out


def test_an_error_that_cannot_be_sent_is_told(call):
    class TiedError(Exception):
        def __init__(self, lock):
            super().__init__("it is tied")
            self.lock = lock

    def train():
        import threading

        raise TiedError(threading.Lock())

    with pytest.raises(launch.LaunchError, match=r"chief has failed: .*it is tied"):
        call(train)


def test_every_task_calls_it_if_there_are_no_ps(call):
    def train():
        import json
        import os

        task = json.loads(os.environ["TF_CONFIG"])["task"]
        print(f"I am {task['index']}")
        return task

    result = call(train, num_ps=0, num_workers=2, chatty=True)
    assert result == {"type": "worker", "index": 0}


def test_the_first_error_of_several_tasks_is_raised(call):
    def train():
        import json
        import os
        import time

        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            raise FileNotFoundError(2, "no data", "train.csv")
        time.sleep(600)

    with pytest.raises(FileNotFoundError) as caught:
        call(train, num_ps=0, num_workers=2)
    assert str(caught.value.__cause__).startswith("in worker:1:")


def test_a_function_that_exits_has_no_result(call):
    with pytest.raises(
        launch.LaunchError, match="no result: it ended without returning"
    ):
        call(sys.exit, 0)
    with pytest.raises(
        launch.LaunchError, match="no result: chief exited with status 3"
    ):
        call(sys.exit, 3)


def test_servers_that_do_not_start_are_named(call, monkeypatch):
    monkeypatch.setenv("DYING_SERVER", "worker:0")
    with pytest.raises(launch.LaunchError, match=r"worker:0.* exited with status 7"):
        call(print)


def test_what_cannot_travel_is_refused(call):
    lock = threading.Lock()
    with pytest.raises(
        TypeError, match=r"the function and its arguments cannot be pick"
    ):
        call(lambda: lock)
    with pytest.raises(
        TypeError, match="the function and its arguments cannot be pick"
    ):
        call(print, lock)

    def train():
        import threading

        return threading.Lock()

    with pytest.raises(
        TypeError, match="what the function returned, a lock, cannot be"
    ):
        call(train)


def test_wrong_arguments_are_refused(call):
    with pytest.raises(TypeError, match=r"received \[1\]: give the function itself"):
        call([1])
    with pytest.raises(TypeError, match="launch.run has no epochs; its options are"):
        call(print, epochs=3)
    with pytest.raises(
        ValueError, match="num_workers must be .*at least 1; received 0"
    ):
        call(print, num_workers=0)
    with pytest.raises(ValueError, match="num_ps must be .*at least 0; received -1"):
        call(print, num_ps=-1)


def test_a_task_of_a_cluster_is_refused(call):
    def train():
        import launch

        launch.run(print)

    with pytest.raises(RuntimeError, match="this process is a task of a cluster"):
        call(train)


def test_cloudpickle_is_asked_for(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ImportError, match="pip install 'cloudpickle>=3'"):
        call(print)


_SCRIPT = """
import sys, time
import launch

def train():
    try:
        print("begun", flush=True)
        time.sleep(600)
    finally:
        print("saved", flush=True)

try:
    launch.run(train, num_ps=1, num_workers=1, server=sys.argv[1:], fork_server="off")
except KeyboardInterrupt:
    print("interrupted")
"""


def start(launcher, output):
    (launcher.directory / "script.py").write_text(_SCRIPT)
    return subprocess.Popen(
        [sys.executable, "script.py", *SERVER],
        cwd=launcher.directory,
        env={**os.environ, "PYTHONPATH": ROOT, "TEST_MARK": launcher.mark},
        stdout=output,
        text=True,
        # Tests that a shell runs in the background ignore interrupts, as do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_an_interrupt_ends_function_and_cluster(launcher):
    with start(launcher, subprocess.PIPE) as process:
        for line in process.stdout:
            if "begun" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(DEADLINE) == 0
    assert "[chief]    saved\n" in rest
    assert rest.endswith("interrupted\n")
    assert "Traceback" not in rest
    launcher.wait_until_nothing_is_left()


def test_nothing_is_left_of_a_process_that_was_killed(launcher):
    with start(launcher, subprocess.DEVNULL) as process:
        wait_for(lambda: len(marked(launcher.mark)) >= 5, "cluster")
        time.sleep(0.5)
        process.kill()
    launcher.wait_until_nothing_is_left()
