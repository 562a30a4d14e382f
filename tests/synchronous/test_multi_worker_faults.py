"""An error names the worker that is missing, dies, stops or differs."""

import json
import re
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tf_config
from tfdist.cluster.liveness.peers import PeerLostError, PeerWatch, naming_lost_peers
from tfdist.keras.batch_structure import BatchStructure
from tfdist.peers import calls
from tfdist.peers.shares import row_range, rows_of_replicas, whole_batch, without_end
from tfdist.peers.waits import Waits, elsewhere
from tfdist.synchronous.fit.driver import SynchronousDriver

from ..support.deadline import DEADLINE
from ..support.raising import raises
from ..support.worker_processes import run_workers

PROGRAM = Path(__file__).parents[1] / "programs" / "worker_fault.py"


def run(fault, victim, only=()):
    """Return the addresses, and the output of each worker that ended by itself."""
    stopped = victim if fault == "SIGSTOP" else None
    return run_workers(2, PROGRAM, fault, victim, only=only, stopped=stopped)


def last_line(output):
    return output.strip().splitlines()[-1]


@pytest.mark.cluster
@pytest.mark.parametrize(("fault", "victim"), [("SIGKILL", 0), ("SIGSTOP", 1)])
def test_a_worker_that_ends_or_stops_in_a_step_is_named(fault, victim):
    addresses, outputs = run(fault, victim)
    error = last_line(outputs[1 - victim])
    assert f"PeerLostError: worker:{victim} at {addresses[victim]} ended" in error
    assert "BackupAndRestore" in error


@pytest.mark.cluster
def test_a_worker_that_never_comes_is_named():
    addresses, outputs = run("missing", 1, only=(0,))
    error = last_line(outputs[0])
    assert "StartupTimeoutError: no server answered within 10 s" in error
    assert f"worker:1 at {addresses[1]}" in error
    assert "worker:0" not in error


@pytest.mark.cluster
def test_unequal_numbers_of_devices_are_refused_on_every_worker():
    _, outputs = run("devices", 1)
    for output in outputs.values():
        error = last_line(output)
        assert "UnequalDevicesError" in error
        assert "received worker:0: 1, worker:1: 2" in error


@pytest.mark.cluster
def test_a_strategy_made_too_late_says_so():
    _, outputs = run("too_late", 1, only=(0,))
    assert "Construct MultiWorkerMirroredStrategy first" in last_line(outputs[0])
    assert "It was made after early/count, early/total" in last_line(outputs[0])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "TF_CONFIG is not set.* --num_ps=0 --num_workers=2 "),
        (
            {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]},
            "keeps no variables on.* --num_ps=0 --num_workers=1 ",
        ),
    ],
)
def test_a_cluster_that_does_not_fit_is_refused(monkeypatch, config, words):
    from tfdist import MultiWorkerMirroredStrategy

    task = {"type": "worker", "index": 0}
    text = json.dumps({"cluster": config, "task": task}) if config else ""
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(tf_config.ClusterError, match=words):
        MultiWorkerMirroredStrategy()


def test_an_evaluator_is_refused():
    from tfdist import MultiWorkerMirroredStrategy

    cluster = tf_config.Cluster(worker=("a:1",), evaluator=("b:1",))
    config = tf_config.TFConfig(cluster, tf_config.Task("evaluator", 0))
    with raises(tf_config.ClusterError, "evaluator:0"):
        MultiWorkerMirroredStrategy(config)


def test_a_cluster_of_another_type_is_refused():
    from tfdist import MultiWorkerMirroredStrategy

    with raises(TypeError, "tf_config.TFConfig"):
        MultiWorkerMirroredStrategy("worker=a:1")


@given(rows=st.integers(0, 100), replicas=st.integers(1, 9))
def test_every_row_has_one_replica(rows, replicas):
    ranges = [row_range(rows, replicas, each) for each in range(replicas)]
    assert [row for begin, end in ranges for row in range(begin, end)] == list(
        range(rows)
    )
    sizes = [end - begin for begin, end in ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_size_of_a_part_is_unknown_whatever_that_of_the_batch_is(rows):
    batches = tf.data.Dataset.from_tensors(tf.zeros([rows, 3])).repeat()
    structure = BatchStructure(batches.element_spec)
    parts = rows_of_replicas(batches, structure, range(1), replicas=2)
    own = batches.map(lambda batch: whole_batch((batch,), None))
    for shares in (parts, own):
        (spec,) = without_end(shares, repeat_last=False).element_spec[2]
        assert spec.shape.as_list() == [None, 3]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("lone_call", "predict, and worker:1 calls evaluate. All"),
        ("lone_begin", "test_on_batch, and worker:1 comes to an exchange at the start"),
    ],
)
def test_a_call_that_one_worker_alone_makes_is_named_on_every_worker(fault, words):
    _, outputs = run(fault, 0)
    for output in outputs.values():
        assert f"LoneCallError: worker:0 calls {words}" in last_line(output)


@pytest.mark.cluster
def test_a_rate_that_a_callback_sets_on_one_worker_alone_is_refused_on_every_worker():
    _, outputs = run("lone_rate", 0)
    for output in outputs.values():
        said = [line for line in output.splitlines() if line.startswith("SAID ")]
        rate = (
            r"UnequalModelError: .*learning_rate \(.*\) is 0.5 on worker:0, but 0.01 on"
        )
        wanted = [rate, rate, "no error"]
        assert len(said) == len(wanted), output
        for line, words in zip(said, wanted, strict=True):
            assert re.search(words, line), said


@pytest.mark.cluster
def test_all_workers_stop_with_one_and_none_waits_for_a_lone_call_in_a_step():
    _, outputs = run("lone_stop", 0)
    for output in outputs.values():
        said = [line for line in output.splitlines() if line.startswith("SAID ")]
        words = (
            "LoneCallError: worker:0 calls predict, and worker:1 comes to a step of fit"
        )
        assert said[0] == "SAID 1 epoch, {7.0}", output
        assert words in said[1]
        assert "stop_training is set on worker:0 alone: all workers stop" in output


WORKERS = ["worker:0", "worker:1"]


def agreed(gather, patience=60.0):
    return calls.agree("predict", [7], WORKERS, gather, patience)


def test_the_same_call_gathers_the_numbers_of_each_worker():
    def gather(numbers):
        return np.array([numbers, [numbers[0], 8]])

    assert agreed(gather).tolist() == [[7], [8]]


@pytest.mark.parametrize(
    "message",
    [
        "Shape mismatch in the collective instance 91",
        "Collective instance 103 expected type 0 and data_type 1 but got type 0",
    ],
)
def test_messages_of_other_calls_are_named(message):
    def gather(numbers):
        raise tf.errors.InternalError(None, None, message)

    with raises(calls.LoneCallError, "another worker"):
        agreed(gather)


class Boards:
    """The board of all workers, without servers."""

    def __init__(self):
        self.told_to_all = {}

    def tell(self, key, number):
        self.told_to_all[key] = number

    def told(self, keys):
        return [self.told_to_all.get(each, -1) for each in keys]


def waiting_at(monkeypatch, *points):
    """Let each worker come to its points; return the error of each at the last one."""
    monkeypatch.setattr("tfdist.peers.waits._LOOK_EVERY", 0.01)
    boards, errors = Boards(), {}

    def come(me, own):
        aborted = threading.Event()
        waits = Waits(boards, WORKERS, me, abort=lambda _: aborted.set())
        try:
            for each in own[:-1]:
                with waits.at(each):
                    pass
            with waits.at(own[-1]):
                assert aborted.wait(DEADLINE if is_deadlock else 0.3) == is_deadlock
                raise RuntimeError("aborted")
        except RuntimeError as error:
            errors[me] = error
        waits.stop()

    is_deadlock = len(points[0]) == len(points[1]) and points[0] != points[1]
    threads = [threading.Thread(target=come, args=each) for each in enumerate(points)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [errors[me] for me in sorted(errors)]


def test_workers_that_wait_for_different_calls_fail(monkeypatch):
    """Also where one of them takes a step, which no message precedes."""
    steps = [calls.STEP] * 3
    found = waiting_at(monkeypatch, [*steps, "predict"], [*steps, calls.STEP])
    words = "worker:0 calls predict, and worker:1 comes to a step of fit"
    assert len(found) == 2
    for error in found:
        assert isinstance(error, calls.LoneCallError)
        assert words in str(error)


def test_a_lone_call_that_took_a_step_with_the_others_is_named(monkeypatch):
    """As `test_on_batch` in `on_test_begin`, which takes their first step."""
    lone = ["evaluate", "test_on_batch", calls.RESET]
    found = waiting_at(monkeypatch, lone, ["evaluate", calls.RESET, calls.STEP])
    last = "The last calls were test_on_batch on worker:0, evaluate on worker:1"
    assert [last in str(error) for error in found] == [True, True]


def test_a_wait_within_another_is_the_same_point_and_the_next_one_follows():
    """A lone `test_on_batch` resets metrics where the others wait before they do."""
    waits = Waits(Boards(), WORKERS, 0, abort=lambda _: None)
    counts = []
    with waits.at("test_on_batch"):
        counts.append(waits.count)
        with waits.at(calls.RESET):
            counts.append(waits.count)
        counts.append(waits.count)
    waits.stop()
    assert counts == [1, 1, 2]


@pytest.mark.parametrize(
    ("call", "first", "then"),
    [
        ("evaluate", "All workers run", "one worker alone sets model.stop_training"),
        (calls.END_OF_EPOCH, "If one worker alone", "All workers run a model"),
        (calls.RESET, "fit, evaluate, train_on_batch and", "All workers run a model"),
    ],
)
def test_the_likely_reason_of_different_calls_comes_first(call, first, then):
    codes = [calls.WAITS.index(each) for each in (calls.STEP, call)]
    _, advice = calls.differing(codes, WORKERS).split(". ", 1)
    assert advice.startswith(first)
    assert then in advice


def test_messages_of_other_calls_name_both_calls(monkeypatch):
    """They fail before either worker has waited for long enough to tell."""
    monkeypatch.setattr("tfdist.peers.waits._LOOK_EVERY", 10.0)
    boards, errors = Boards(), []

    def come(me, wait):
        waits = Waits(boards, WORKERS, me, abort=lambda _: None)
        with pytest.raises(calls.LoneCallError) as raised, waits.at(wait):
            raise tf.errors.InternalError(None, None, "mismatch in the collective 9")
        waits.stop()
        errors.append(str(raised.value))

    points = enumerate(["train_on_batch", calls.STEP])
    threads = [threading.Thread(target=come, args=each) for each in points]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    words = "worker:0 calls train_on_batch, and worker:1 comes to a step"
    assert [words in each for each in errors] == [True, True]


@pytest.mark.parametrize(
    ("wait", "may_stop"),
    [(calls.END_OF_EPOCH, True), ("evaluate", True), ("predict", False)],
)
def test_an_epoch_that_one_worker_ends_alone_is_said(wait, may_stop):
    here, there = (1 << 8 | calls.WAITS.index(each) for each in (calls.STEP, wait))
    words = elsewhere(dict(zip(WORKERS, (here, there), strict=True)), here)
    assert ("sets model.stop_training within an epoch" in words) == may_stop


@pytest.mark.parametrize(
    "other", [[calls.STEP], [calls.STEP, "predict"], [calls.STEP] * 3]
)
def test_a_worker_that_is_behind_is_waited_for(monkeypatch, other):
    found = waiting_at(monkeypatch, [calls.STEP, "predict"], other)
    assert [type(each) for each in found] == [RuntimeError] * 2


def test_what_one_worker_has_counted_alone_is_forgotten_where_all_meet():
    class Extended:
        worker_names, peer_timeout = WORKERS, 60.0

        def gather_numbers(self, numbers):
            return np.array([numbers, [*numbers[:-1], 41]])

    waits = Waits(Boards(), WORKERS, 0, abort=lambda _: None)
    strategy = types.SimpleNamespace(
        extended=Extended(),
        num_workers=2,
        has_one_script=False,
        checkpoints=None,
        waits=waits,
    )
    assert SynchronousDriver(strategy).agree("predict", 7) == [7, 7]
    assert waits.count == 42


def test_who_is_waited_for_is_said_meanwhile_and_afterwards(caplog):
    warned = threading.Event()
    caplog.handler.addFilter(lambda _: warned.set() or True)

    def gather(numbers):
        assert warned.wait(DEADLINE)
        raise PeerLostError("worker:1 at 127.0.0.1:80 ended. Every step needs all")

    with pytest.raises(PeerLostError) as raised:
        agreed(gather, patience=0.01)
    assert "called predict, and waits for another one to call it" in caplog.text
    assert "called predict, and waits for another" in str(raised.value)
    words = r"but worker:1 at 127\.0\.0\.1:80 ended\. If its script has come to its end: All"
    assert re.search(words, str(raised.value))


PEER = tf_config.Task("worker", 1)


@pytest.fixture
def watch(monkeypatch):
    """Start a watch on a peer that answers with one problem after another."""
    monkeypatch.setattr("tfdist.cluster.liveness.peers._PAUSE_SECONDS", 0.01)
    watches = []

    def start(problems, timeout):
        aborted, answers = threading.Event(), iter(problems)
        messages = []

        def check(task, seconds):
            problem = next(answers, None)
            if problem is not None:
                raise problem(None, None, "no answer")

        def give_up(message, is_back):
            messages.append(message)
            aborted.set()
            return False

        watches.append(PeerWatch({PEER: "b:1"}, timeout, check, give_up))
        return aborted, messages

    yield start
    for each in watches:
        each.stop()


def test_a_peer_that_refuses_again_and_again_is_given_up(watch):
    aborted, messages = watch([tf.errors.UnavailableError] * 3, timeout=60.0)
    assert aborted.wait(DEADLINE)
    assert messages == ["worker:1 at b:1 does not answer"]


def test_a_peer_that_is_silent_too_long_is_given_up(watch):
    aborted, _ = watch([tf.errors.DeadlineExceededError] * 1000, timeout=0.05)
    assert aborted.wait(DEADLINE)


def test_a_peer_that_answers_again_is_kept(watch):
    twice = [tf.errors.UnavailableError] * 2 + [None]
    aborted, _ = watch(twice * 3, timeout=60.0)
    assert not aborted.wait(0.5)


def test_a_peer_that_is_back_is_watched_on(monkeypatch):
    monkeypatch.setattr("tfdist.cluster.liveness.peers._PAUSE_SECONDS", 0.01)
    is_stopped, found = threading.Event(), []
    is_given_up_twice = threading.Event()

    def check(task, seconds):
        if is_stopped.is_set():
            raise tf.errors.DeadlineExceededError(None, None, "no answer")

    def give_up(message, is_back):
        found.append(is_back())
        is_stopped.clear()
        found.append(is_back())
        is_stopped.set()
        if len(found) == 4:
            is_given_up_twice.set()
        return True

    is_stopped.set()
    watch = PeerWatch({PEER: "b:1"}, 0.05, check, give_up)
    assert is_given_up_twice.wait(DEADLINE)
    watch.stop()
    assert found[:4] == [False, True] * 2


def test_a_peer_that_has_ended_is_never_back(monkeypatch):
    monkeypatch.setattr("tfdist.cluster.liveness.peers._PAUSE_SECONDS", 0.01)
    listens, found = threading.Event(), []
    is_given_up = threading.Event()

    def check(task, seconds):
        if not listens.is_set():
            raise tf.errors.UnavailableError(None, None, "refused")

    def give_up(message, is_back):
        listens.set()
        found.append(is_back())
        is_given_up.set()
        return False

    PeerWatch({PEER: "b:1"}, 60.0, check, give_up)
    assert is_given_up.wait(DEADLINE)
    assert found == [False]


def test_an_error_of_a_step_stays_where_all_peers_answer():
    with (
        raises(tf.errors.InvalidArgumentError, "shapes"),
        naming_lost_peers(lambda: []),
    ):
        raise tf.errors.InvalidArgumentError(None, None, "shapes do not fit")
    with (
        raises(PeerLostError, "worker:1 at b:1"),
        naming_lost_peers(lambda: ["worker:1 at b:1"]),
    ):
        raise tf.errors.UnavailableError(None, None, "reset by peer")
