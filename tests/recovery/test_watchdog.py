"""Stalled training: which task it waits for, and what is done about it."""

import atexit
import itertools
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_config import Cluster, Task, contract
from tf_config.contract import EXIT_STALLED
from tfdist.cluster.health import problems
from tfdist.cluster.liveness import supervision
from tfdist.cluster.liveness.activity import DATA, STEPS, Activity
from tfdist.cluster.liveness.stall import (
    ON_STALL,
    Kind,
    Seen,
    Stall,
    Timeouts,
    action,
    lines,
    stalled,
)
from tfdist.cluster.liveness.watchdog import StalledError, Watchdog, _end_in_time
from tfdist.cluster.startup import wait_for_servers
from tfdist.errors import StartupTimeoutError

from ..launch_programs.fake_server import FakeServer
from ..support.addresses import free_addresses
from ..support.deadline import DEADLINE

# Of a watchdog that must find a server alive, on a machine that is busy.
PATIENCE = 5.0  # seconds


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Seen(True, {}), None),
        (Seen(True, {"ps:0": 9}), None),
        (Seen(True, {"ps:0": 10}), Stall(Kind.TASK, ("ps:0",))),
        (Seen(False, {"ps:0": 10}), None),
        (Seen(True, {"worker:1": 10}), Stall(Kind.TASK, ("worker:1",), fatal=False)),
        (Seen(True, {"worker:1": 30}, 10), Stall(Kind.TASK, ("worker:1",))),
        (Seen(True, {"worker:1": 5}, 30), None),
        (Seen(True, {}, 0, 10), Stall(Kind.DATA)),
        (
            Seen(True, {}, 10, 0, {"worker:0": 10, "worker:1": 3}),
            Stall(Kind.STEPS, ("worker:0",)),
        ),
        (Seen(True, {}, 10), Stall(Kind.STEPS)),
    ],
)
def test_which_task_training_waits_for(seen, expected):
    assert stalled(seen, Timeouts(10, 10)) == expected


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (Seen(True, {"ps:0": 5}), Kind.TASK),
        (Seen(True, {"ps:0": 4}, 9), None),
        (Seen(True, {}, 5, 5), None),
        (Seen(True, {}, 10), Kind.STEPS),
    ],
)
def test_a_task_may_be_silent_for_less_time_than_a_step_may_take(seen, kind):
    found = stalled(seen, Timeouts(task=5, step=10))
    assert (found and found.kind) == kind


TIMES = st.floats(0, 20)


@given(
    st.dictionaries(st.sampled_from(["ps:0", "worker:0", "worker:1"]), TIMES),
    TIMES,
    TIMES,
)
def test_tasks_that_answer_and_make_progress_are_left_alone(silent, progress, data):
    found = stalled(Seen(True, silent, progress, data), Timeouts(10, 10))
    if max([*silent.values(), progress, data], default=0) < 10:
        assert found is None
    if found and found.kind is Kind.TASK:
        assert all(silent[task] >= 10 for task in found.tasks)
    if found and found.kind is not Kind.TASK:
        assert not silent


@pytest.mark.parametrize("supervised", [True, False])
def test_what_is_done_about_a_stall(supervised):
    for kind, on_stall in itertools.product(Kind, [None, *ON_STALL]):
        done = action(Stall(kind), on_stall, supervised)
        if on_stall == "warn" or (on_stall is None and kind is not Kind.TASK):
            assert done == "warn", (kind, on_stall)
        elif supervised and on_stall != "raise":
            assert done == "restart", (kind, on_stall)
        else:
            assert done == "raise", (kind, on_stall)


def test_a_silent_worker_without_which_training_goes_on_is_no_error():
    assert action(Stall(Kind.TASK, ("worker:1",), fatal=False), "raise", True) == "warn"


def test_each_task_was_last_seen_doing_something():
    seen = Seen(True, {"ps:0": 12.0}, busy={"worker:0": 61.0})
    said = lines(seen, {"ps:0": "is stopped"}, {"worker:0": 7}, ["ps:0", "worker:0"])
    assert said == [
        "  ps:0: is stopped (for 12 s)",
        "  worker:0: answers, 7 functions finished, one under way for 61 s",
    ]


@pytest.fixture
def server():
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.slow
def test_what_is_wrong_with_a_server_is_told(server, listener):
    tasks = {
        Task("ps", 0): server.address,
        Task("ps", 1): listener,
        Task("worker", 0): free_addresses(1)[0],
    }
    found = problems(tasks, PATIENCE)
    assert set(found) == {Task("ps", 1), Task("worker", 0)}
    assert "does not answer" in found[Task("ps", 1)]
    assert "refused" in found[Task("worker", 0)].lower()


@pytest.mark.slow
def test_a_program_that_is_not_a_tensorflow_server_is_named(server, listener):
    cluster = Cluster(chief=("127.0.0.1:1",), ps=(server.address,), worker=(listener,))
    with pytest.raises(StartupTimeoutError) as error:
        wait_for_servers(cluster, timeout=PATIENCE)
    assert f"worker:0 at {listener} (does not answer" in str(error.value)
    assert "ps:0" not in str(error.value)


@pytest.fixture
def watch(server, monkeypatch):
    monkeypatch.delenv(contract.REPORT_FD, raising=False)
    statuses, dogs = [], []

    def start(on_stall=None, timeout=PATIENCE):
        activity = Activity(1)
        tasks = {Task(job, 0): server.address for job in ("ps", "worker")}
        dog = Watchdog(
            tasks, activity, Timeouts(timeout, timeout), on_stall, statuses.append
        )
        dogs.append(dog)
        return dog, activity

    start.statuses = statuses
    yield start
    for dog in dogs:
        dog.stop()
    # The process of the tests raised no error of its own: it may take long to end.
    atexit.unregister(_end_in_time)


def check_until_it_raises(dog):
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        dog.check()
        time.sleep(0.02)
    raise AssertionError("nothing was raised")


def test_a_task_that_does_not_answer_ends_the_wait_by_name(watch, server):
    dog, activity = watch(timeout=0.5)
    server.silent.set()
    with activity.call(), pytest.raises(StalledError) as error:
        check_until_it_raises(dog)
    assert f"no answer from a task for 0.5 s: ps:0 at {server.address}" in str(
        error.value
    )
    assert "  ps:0: does not answer" in str(error.value)
    assert watch.statuses == []


def test_its_sentinel_watches_as_long_as_the_cluster_is_needed(watch, monkeypatch):
    told = []

    class Sentinel:
        def __init__(self, patience):
            told.append(patience)
            if len(told) == 1:
                raise BlockingIOError("no process to be had")

        def tell(self, seen):
            told.append(seen)

        def pause(self):
            told.append("pause")

        def close(self):
            told.append("close")

    monkeypatch.setattr("tfdist.cluster.liveness.watchdog.Sentinel", Sentinel)
    dog, activity = watch(timeout=0.5)
    time.sleep(0.5)
    assert told == []
    with activity.call():
        wait_until(lambda: told and "  ps:0: answers" in str(told[-1]))
    wait_until(lambda: told[-1] == "pause")
    dog.stop()
    wait_until(lambda: told[-1] == "close")
    assert told[:2] == [2 * 0.5 + 60] * 2


def test_a_main_thread_out_of_reach_is_ended_with_a_status(
    watch, server, monkeypatch, capsys
):
    monkeypatch.setattr("tfdist.cluster.liveness.watchdog._SECONDS_TO_RAISE", 0.2)
    _, activity = watch(timeout=0.5)
    server.silent.set()
    with activity.call():
        wait_until(lambda: watch.statuses)
    assert watch.statuses[0] == EXIT_STALLED
    assert "ending the process with status 69" in capsys.readouterr().err


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_silent_tasks_do_not_matter_between_two_calls(watch, server, caplog):
    dog, _ = watch(timeout=0.2)
    server.silent.set()
    time.sleep(1.0)
    dog.check()
    assert caplog.text == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"), [(DATA, "data pipeline"), (STEPS, "no step")]
)
def test_a_slow_pipeline_and_a_slow_step_are_told_apart(watch, caplog, what, words):
    dog, activity = watch()
    with activity.call(), activity.waiting_for(what):
        wait_until(lambda: words in caplog.text)
        dog.check()
    assert "every task answers" in caplog.text
    assert "ps:0: answers" in caplog.text


@pytest.mark.slow
def test_a_slow_step_is_an_error_if_asked_for(watch):
    dog, activity = watch(on_stall="raise")
    activity.begun(0)
    with pytest.raises(StalledError):
        check_until_it_raises(dog)
    activity.ended(0, True)
    assert activity.finished == {"worker:0": 1}


@pytest.mark.slow
def test_steps_that_finish_are_progress(watch, caplog):
    _, activity = watch()
    until = time.monotonic() + 1.5 * PATIENCE
    while time.monotonic() < until:
        activity.begun(0)
        time.sleep(0.05)
        activity.ended(0, True)
    assert caplog.text == ""


def test_a_supervisor_is_asked_to_start_a_silent_task_again(watch, server, monkeypatch):
    told = []
    monkeypatch.setattr(supervision, "is_supervised", lambda: True)
    monkeypatch.setattr(
        supervision, "report_stalled", lambda tasks, why: told.append((tasks, why))
    )
    _, activity = watch(timeout=0.5)
    server.silent.set()
    with activity.call():
        wait_until(lambda: told)
    tasks, why = told[0]
    assert tasks == ["ps:0", "worker:0"]
    assert "does not answer" in why
