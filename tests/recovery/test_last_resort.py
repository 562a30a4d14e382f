"""The last resort: a call that continues without a peer ends the process."""

import contextlib
import threading
import time

import pytest

from tf_config.contract import EXIT_STALLED
from tfdist.cluster.liveness.watched_workers import LastResort

from ..support.deadline import DEADLINE


@pytest.fixture
def ended():
    return []


@pytest.fixture
def resort(ended):
    return LastResort(0.05, ended.append)


def never():
    return False


def lose_a_peer(resort):
    thread = threading.Thread(target=resort.lost, args=("worker:1 is lost", never))
    thread.daemon = True
    thread.start()
    return thread


def test_a_call_that_continues_ends_the_process(resort, ended, capsys):
    with resort.call(), resort.call():
        lose_a_peer(resort).join(DEADLINE)
    assert ended == [EXIT_STALLED]
    assert "worker:1 is lost" in capsys.readouterr().err


def test_a_call_that_begins_later_counts(resort, ended):
    thread = lose_a_peer(resort)
    time.sleep(0.2)
    assert ended == []
    with resort.call():
        thread.join(DEADLINE)
    assert ended == [EXIT_STALLED]


def test_calls_that_end_do_not_count(resort, ended, monkeypatch):
    calls = contextlib.ExitStack()
    slept = []

    def one_ends_and_another_begins(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            raise EOFError
        calls.close()
        calls.enter_context(resort.call())

    monkeypatch.setattr(time, "sleep", one_ends_and_another_begins)
    calls.enter_context(resort.call())
    with pytest.raises(EOFError):
        resort.lost("worker:1 is lost", never)
    assert slept == [0.05] * 3
    assert ended == []


def test_a_peer_that_was_stopped_between_two_calls_and_continues_is_not_lost(
    resort, ended
):
    with resort.call():
        assert resort.lost("worker:1 is lost", lambda: True)
    assert ended == []
