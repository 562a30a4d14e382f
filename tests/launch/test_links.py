"""What passes between tasks, and is held back, cut or slowed down."""

import contextlib
import socket
import threading
import time

import psutil
import pytest

import launch
from launch.fault.experiment import through_links
from launch.loopback.cluster import make_job
from launch.network.impaired_links import HOST, ImpairedLinks, Impairment

from ..support.deadline import DEADLINE


def ports(plans):
    return {plan.name: plan.port for plan in plans}


@pytest.fixture
def plans():
    job = make_job(launch.local_cluster(1, 1), launch.Program("train.py"))
    return [through_links(plan) for plan in job.plans]


@pytest.fixture
def echo(plans):
    """A server in the place of ps:0, which sends back what it is sent."""
    port = ports(plans)["ps:0"]

    def serve(listener):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=listener.accept()[:1]).start()

    def answer(connection):
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=serve, args=[listener]).start()
        yield port
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def links(plans):
    with ImpairedLinks(ports(plans), lambda: {"worker:0": psutil.Process()}) as links:
        yield links


@pytest.fixture
def connection(links, echo):
    with socket.create_connection((HOST, echo), DEADLINE) as connection:
        yield connection


def echoed(connection, data=b"hello"):
    connection.sendall(data)
    received = b""
    while len(received) < len(data):
        received += connection.recv(1 << 16)
    return received


def test_tasks_know_each_other_by_the_address_of_the_links(plans):
    assert len(plans) == 3
    for plan in plans:
        assert plan.host == HOST
        assert "127.0.0.1" not in plan.env["TF_CONFIG"]


def test_everything_passes_as_it_is(connection):
    data = bytes(range(256)) * 4000
    sender = threading.Thread(target=connection.sendall, args=[data])
    sender.start()
    received = b""
    while len(received) < len(data):
        received += connection.recv(1 << 16)
    sender.join()
    assert received == data


@pytest.mark.parametrize("end", ["ps:0", "worker:0"])
def test_nothing_passes_a_cut_link_of_either_end_and_nothing_is_lost(
    links, connection, end
):
    assert echoed(connection) == b"hello"
    mend = links.impair(end, Impairment(is_cut=True))
    connection.settimeout(0.3)
    with pytest.raises(TimeoutError):
        echoed(connection)
    mend()
    connection.settimeout(DEADLINE)
    assert connection.recv(100) == b"hello"
    assert echoed(connection) == b"hello"


def test_another_task_is_not_concerned(links, connection):
    links.impair("chief", Impairment(is_cut=True))
    assert echoed(connection) == b"hello"


def test_what_is_held_back_arrives_later(links, connection):
    links.impair("ps:0", Impairment(delay=0.1))
    began = time.monotonic()
    assert echoed(connection) == b"hello"
    assert time.monotonic() - began >= 0.2  # There and back.


def test_a_slow_link_takes_the_time_of_its_rate(links, connection):
    links.impair("worker:0", Impairment(rate=1e5))
    began = time.monotonic()
    for _ in range(3):
        assert echoed(connection, b"x" * 10_000) == b"x" * 10_000
    assert time.monotonic() - began >= 0.2  # The last one need not wait.


def test_a_server_that_is_not_there_ends_the_connection(links, plans):
    port = ports(plans)["ps:0"]
    with socket.create_connection((HOST, port), DEADLINE) as connection:
        assert connection.recv(1) == b""


def test_two_links_are_as_bad_as_both():
    slow, late = Impairment(rate=5.0), Impairment(delay=0.5, rate=9.0, is_cut=True)
    assert slow + late == Impairment(0.5, 5.0, True)
    assert Impairment() + slow == slow


def test_nobody_listens_once_the_context_is_left(plans):
    with ImpairedLinks(ports(plans), dict):
        pass
    for plan in plans:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, plan.port), DEADLINE)
