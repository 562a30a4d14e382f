"""The process that kills a chief whose threads no longer run."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tfdist.cluster.liveness import sentinel
from tfdist.cluster.liveness.sentinel import Sentinel

from ..support.deadline import DEADLINE

# It loads the file alone: TensorFlow has no part in this.
PROGRAM = f"""
import ctypes, importlib.util, sys, time
spec = importlib.util.spec_from_file_location("sentinel", {sentinel.__file__!r})
sentinel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sentinel)
one = sentinel.Sentinel(float(sys.argv[1]), 0.5)
"""
# `PyDLL` keeps the lock of the interpreter, as TensorFlow does.
HANG = "ctypes.PyDLL(None).sleep(60)"


def start_program(code, patience):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + code, str(patience)],
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def start():
    started = []

    def start(code, patience=0.5):
        started.append(start_program(code, patience))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_program_that_holds_the_lock_is_ended_with_what_was_last_seen(start):
    process = start(f"one.tell('  ps:0: answers\\n  worker:1: silent'); {HANG}")
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == -9
    assert "no thread of this program has run for 0.5 s" in errors
    assert "Last seen:\n  ps:0: answers\n  worker:1: silent\n" in errors


# Each takes longer than its sentinel waits, with the second look.
PATIENCE = 5.0  # seconds
LONG = HANG.replace("60", "7")
LEFT_ALONE = {
    "tells it": "[(one.tell('seen'), time.sleep(0.1)) for _ in range(70)]",
    "has it pause": f"one.tell('seen'); one.pause(); {LONG}",
    "was never watched": LONG,
    "has closed it": f"one.tell('seen'); one.close(); {LONG}",
}


@pytest.fixture(scope="module")
def left_alone():
    """Programs that run side by side: most of their time is waiting."""
    started = {name: start_program(LEFT_ALONE[name], PATIENCE) for name in LEFT_ALONE}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_another_program_is_left_alone(left_alone, name):
    _, errors = left_alone[name].communicate(timeout=DEADLINE)
    assert (left_alone[name].returncode, errors) == (0, "")


def test_it_ends_with_its_program(start):
    process = start(
        "one.tell('seen'); print('up', file=sys.stderr); time.sleep(60)", 60
    )
    process.stderr.readline()
    [own] = psutil.Process(process.pid).children()
    process.kill()
    own.wait(DEADLINE)


def test_one_that_was_stopped_with_its_program_looks_again():
    one = Sentinel(0.5, second_look=30.0)
    try:
        one.tell("seen")
        process = psutil.Process(one._process.pid)
        time.sleep(0.3)
        process.suspend()
        time.sleep(1.0)
        process.resume()
        time.sleep(0.5)
        one.tell("seen")
        assert process.is_running()
    finally:
        one.close()


def test_it_may_be_killed():
    one = Sentinel(60.0)
    one._process.kill()
    one._process.wait()
    one.tell("seen")
    one.close()


def test_one_that_does_not_read_blocks_nobody():
    one = Sentinel(60.0)
    process = psutil.Process(one._process.pid)
    process.suspend()
    try:
        for _ in range(100):
            one.tell("a task, and what it was last seen doing\n" * 1000)
    finally:
        process.resume()
    one.tell("seen")
    assert process.is_running()
    one.close()
    assert one._process.returncode == 0  # It could read what it was told.


def test_it_needs_the_standard_library_alone():
    names = sys.stdlib_module_names
    lines = Path(sentinel.__file__).read_text().splitlines()
    imported = [line.split()[1] for line in lines if line.startswith("import ")]
    assert imported
    assert set(imported) <= names
