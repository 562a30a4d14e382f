"""Which workers take part, and when TensorFlow is told."""

import threading
import time

import pytest
import tensorflow as tf

from tf_config import Cluster, Task, TFConfig, contract
from tfdist.cluster.health import NO_ANSWER
from tfdist.cluster.liveness.activity import Activity
from tfdist.cluster.liveness.stall import Timeouts
from tfdist.cluster.liveness.watchdog import Watchdog
from tfdist.cluster.membership import resolver_of
from tfdist.cluster.presence import Presence, members_of
from tfdist.cluster.settings import min_workers_of
from tfdist.cluster.startup import wait_for_servers
from tfdist.errors import StartupTimeoutError

from ..launch_programs.fake_server import FakeServer
from ..support.addresses import free_addresses
from ..support.deadline import DEADLINE
from ..support.raising import raises

PS, FIRST, SECOND, THIRD = Task("ps", 0), *(Task("worker", i) for i in range(3))
GONE = "cannot be reached: Connection refused"


@pytest.fixture
def server():
    server = FakeServer()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("given", "told", "expected"),
    [(None, "", 4), (None, "2", 2), (3, "2", 3), (1, "", 1), (4, "", 4)],
)
def test_how_many_workers_are_needed(monkeypatch, given, told, expected):
    monkeypatch.setenv(contract.MIN_WORKERS, told)
    assert min_workers_of(given, 4, default=4) == expected


@pytest.mark.parametrize(
    ("given", "told"),
    [
        *[(given, "2") for given in (0, 5, 1.0, True)],
        (None, "0"),
        (None, "5"),
        (None, "two"),
    ],
)
def test_numbers_of_workers_that_are_refused(monkeypatch, given, told):
    monkeypatch.setenv(contract.MIN_WORKERS, told)
    name, received = "min_workers", given
    if given is None:
        name, received = contract.MIN_WORKERS, told
    words = f"^{name} must be .* 1 to 4.*received {received!r}"
    with pytest.raises(ValueError, match=words):
        min_workers_of(given, 4, default=4)


@pytest.mark.parametrize(
    ("problems", "expected"),
    [
        ({}, [FIRST, SECOND]),
        ({SECOND: GONE}, [FIRST]),
        ({SECOND: NO_ANSWER}, []),
        ({PS: GONE}, []),
        ({PS: NO_ANSWER}, []),
        ({FIRST: GONE, SECOND: NO_ANSWER}, []),
    ],
)
def test_nothing_changes_while_tensorflow_would_wait(problems, expected):
    assert members_of([PS, FIRST, SECOND], problems) == expected


def test_enough_workers_are_waited_for_and_the_others_named(server):
    first, second, chief = free_addresses(3)
    worker = FakeServer()
    cluster = Cluster(
        chief=(chief,), ps=(server.address,), worker=(first, worker.address, second)
    )
    try:
        assert wait_for_servers(cluster, DEADLINE, 1) == (FIRST, THIRD)
        with pytest.raises(StartupTimeoutError) as error:
            wait_for_servers(cluster, 1, 2)
    finally:
        worker.close()
    words = str(error.value)
    assert f"worker:0 at {first}" in words
    assert f"worker:2 at {second}" in words
    assert "worker:1" not in words
    assert "1 of 3 workers answers, and 2 are needed (min_workers=2)" in words


def test_a_ps_is_always_waited_for(server):
    [absent] = free_addresses(1)
    cluster = Cluster(chief=("127.0.0.1:1",), ps=(absent,), worker=(server.address,))
    with raises(StartupTimeoutError, "ps:0"):
        wait_for_servers(cluster, 1, 1)


def test_tensorflow_counts_absent_workers_and_is_not_told_their_addresses():
    cluster = Cluster.from_hosts(chief="a:1", ps="a:2", worker="a:3,a:4,a:5")
    config = TFConfig(cluster, Task("chief", 0))
    spec = resolver_of(config, [FIRST, THIRD]).cluster_spec()
    assert spec.as_dict() == cluster.cluster_spec()
    jobs = {job.name: dict(job.tasks) for job in spec.as_cluster_def().job}
    assert jobs == {"chief": {0: "a:1"}, "ps": {0: "a:2"}, "worker": {1: "a:4"}}
    everyone = resolver_of(config).cluster_spec()
    assert everyone == tf.train.ClusterSpec(cluster.cluster_spec())


def presence_of(server, connect, absent=(SECOND,), min_workers=1, address=""):
    servers = {PS: server.address, FIRST: server.address, SECOND: address}
    return Presence(servers, absent, min_workers, connect)


def test_a_worker_joins_when_it_answers(server):
    [address] = free_addresses(1)
    connected = []
    presence = presence_of(server, connected.append, address=address)
    assert presence.away == {SECOND}
    assert "starts with 1 of 2 workers (min_workers=1)" in presence.describe()
    waiting = threading.Thread(target=presence.rejoin, args=(1, lambda: False))
    waiting.start()
    time.sleep(1)
    assert connected == []
    late = FakeServer(int(address.rpartition(":")[2]))
    waiting.join(DEADLINE)
    late.close()
    assert connected == [{0: server.address, 1: address}]
    assert presence.away == set()


def test_a_failed_connection_is_tried_again(server):
    tries = []

    def connect(addresses):
        tries.append(addresses)
        if len(tries) == 1:
            raise tf.errors.UnavailableError(None, None, "it has gone again")

    presence = presence_of(server, connect, address=server.address)
    presence.rejoin(1, lambda: False)
    assert len(tries) == 2
    assert presence.away == set()


def test_a_worker_that_has_ended_is_left_out_until_it_is_back(server):
    [address] = free_addresses(1)
    connected, looks = [], []

    def is_over():
        looks.append(True)
        return len(looks) > 3

    presence = presence_of(server, connected.append, (), address=address)
    presence.rejoin(1, is_over)
    # Once, however often it does not answer.
    assert connected == [{0: server.address}]
    assert presence.away == {SECOND}


def test_nobody_waits_for_a_worker_once_the_program_is_over(server):
    presence = presence_of(server, pytest.fail, address=free_addresses(1)[0])
    presence.rejoin(1, lambda: True)
    assert presence.away == {SECOND}


@pytest.mark.parametrize(
    ("absent", "min_workers", "excused"),
    [
        ([SECOND], 1, {SECOND}),
        ([], 1, set()),
        # Too few are left, so that training waits for them.
        ([FIRST, SECOND], 1, set()),
        ([SECOND], 2, set()),
    ],
)
def test_whose_silence_is_no_fault(server, absent, min_workers, excused):
    presence = presence_of(server, pytest.fail, absent, min_workers)
    assert presence.not_waited_for == excused


@pytest.mark.not_in_gate
def test_the_watchdog_looks_at_nobody_who_is_not_waited_for(server):
    [gone] = free_addresses(1)
    excused, activity = {SECOND}, Activity(2)
    dog = Watchdog(
        {PS: server.address, SECOND: gone},
        activity,
        Timeouts(0.5, 0.5),
        "raise",
        lambda status: None,
        lambda: excused,
    )
    try:
        with activity.waiting_for("steps"):
            time.sleep(2)
            found = "\n".join(dog._lines(dog._seen()))
            assert "worker:1: is away, and not waited for" in found
            assert "cannot be reached" not in found
            excused.clear()
            deadline = time.monotonic() + DEADLINE
            while "worker:1: cannot be reached" not in "\n".join(
                dog._lines(dog._seen())
            ):
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        dog.stop()


def test_who_has_lost_a_function_until_it_gets_one():
    activity = Activity(2)
    for worker in (0, 1):
        activity.begun(worker)
    activity.ended(0, True)
    activity.ended(1, False)
    assert activity.lost == {1}
    activity.begun(1)
    assert not activity.lost
