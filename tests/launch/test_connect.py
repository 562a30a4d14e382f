import dataclasses
import socket
import threading

import pytest
import tensorflow as tf

from tf_config import Cluster, ClusterError, Task, TFConfig
from tfdist import ParameterServerStrategy
from tfdist.cluster.liveness.stall import Timeouts
from tfdist.cluster.reach import try_until_reached
from tfdist.cluster.startup import wait_for_servers
from tfdist.errors import StartupTimeoutError
from tfdist.parameter_server.settings import Arguments, settings_of

from ..launch_programs.fake_server import FakeServer
from ..support.addresses import free_addresses
from ..support.deadline import DEADLINE


@pytest.fixture
def server():
    server = FakeServer()
    yield server
    server.close()


def test_returns_once_every_server_answers(server):
    [late] = free_addresses(1)
    cluster = Cluster(
        chief=("127.0.0.1:1",),
        ps=(server.address,),
        worker=(late,),
    )
    port = int(late.rpartition(":")[2])
    servers = []
    start = threading.Timer(0.6, lambda: servers.append(FakeServer(port)))
    start.start()
    wait_for_servers(cluster, timeout=DEADLINE)
    assert servers, "it did not wait for the worker"
    servers[0].close()


@pytest.mark.slow
def test_names_the_servers_that_did_not_answer(server):
    [missing] = free_addresses(1)
    cluster = Cluster(
        chief=("127.0.0.1:1",),
        ps=(server.address,),
        worker=(missing,),
    )
    with pytest.raises(StartupTimeoutError) as error:
        wait_for_servers(cluster, timeout=5)
    words = str(error.value)
    assert f"worker:0 at {missing}" in words
    assert "ps:0" not in words
    assert "within 5 s" in words
    assert "python -m launch.task" in words


def test_a_proxy_between_is_refused_before_anything_hangs(monkeypatch, server):
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    cluster = Cluster(chief=("127.0.0.1:1",), ps=(server.address,), worker=("w:1",))
    with pytest.raises(ClusterError) as error:
        wait_for_servers(cluster, timeout=30)
    words = str(error.value)
    assert "http_proxy names a proxy" in words
    assert "export no_grpc_proxy=localhost,127.0.0.1,w" in words
    assert "secret" not in words


@pytest.mark.slow
def test_a_host_name_that_takes_for_ever_keeps_the_deadline(monkeypatch):
    looked_up, is_over = threading.Event(), threading.Event()

    def look_up(*args, **kwargs):
        looked_up.set()
        is_over.wait()
        raise socket.gaierror("this name took forever")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    cluster = Cluster(chief=("127.0.0.1:1",), ps=("slow:1",), worker=("slow:2",))
    with pytest.raises(StartupTimeoutError, match="ps:0 at slow:1, worker:0 at slow:2"):
        wait_for_servers(cluster, timeout=5)
    assert looked_up.is_set()
    is_over.set()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stall_timeout": 0}, "stall_timeout must be > 0 seconds; received 0"),
        ({"checkpoint_interval": -1.0}, "checkpoint_interval, must be > 0 seconds"),
        ({"checkpoint_interval": float("nan")}, "received nan"),
        ({"checkpoints_to_keep": 0}, "checkpoints_to_keep, must be an integer > 0"),
        ({"checkpoints_to_keep": 1.5}, "received 1.5"),
        ({"on_stall": "stop"}, "on_stall must be one of warn, raise, restart, or None"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ParameterServerStrategy(**options)


def test_a_silent_task_may_have_a_timeout_of_its_own(monkeypatch):
    monkeypatch.delenv("TFDIST_STALL_TIMEOUT", raising=False)
    cluster = Cluster(chief=("a:1",), ps=("a:2",), worker=("a:3", "a:4"))
    given = dict.fromkeys(field.name for field in dataclasses.fields(Arguments))
    given["cluster_resolver"] = TFConfig(cluster, Task("chief", 0))
    for job, expected in [({}, (120, 120)), ({"peer_timeout": 5}, (5, 120))]:
        settings = settings_of(Arguments(**{**given, "job": job}))
        assert settings.timeouts == Timeouts(*expected)
        assert (settings.min_workers, settings.job.startup_timeout) == (2, 60)


def test_a_stall_timeout_of_the_environment_is_a_number(monkeypatch):
    monkeypatch.setenv("TFDIST_STALL_TIMEOUT", "2m")
    with pytest.raises(
        ValueError, match="TFDIST_STALL_TIMEOUT must be a time > 0 seconds.*'2m'"
    ):
        ParameterServerStrategy()


@pytest.fixture
def tries():
    """Reaches the ps at the third try."""
    count = []

    def receive():
        count.append(1)
        if len(count) < 3:
            raise tf.errors.UnavailableError(None, None, "failed to connect: refused")

    return count, receive


def test_a_worker_that_does_not_reach_a_ps_yet_tries_again(tries):
    count, receive = tries
    try_until_reached("worker:1", receive, lambda: True, DEADLINE)
    assert len(count) == 3


def test_a_worker_that_never_reaches_a_ps_is_named(tries):
    with pytest.raises(
        StartupTimeoutError, match=r"worker:1 cannot.*refused.*firewall"
    ):
        try_until_reached("worker:1", tries[1], lambda: True, timeout=0)


def test_a_lost_worker_is_left_to_recovery(tries):
    count, receive = tries
    try_until_reached("worker:1", receive, lambda: False, DEADLINE)
    assert len(count) == 1
