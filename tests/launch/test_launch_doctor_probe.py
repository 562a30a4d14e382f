"""What is found where a task should be: each kind of server, and none."""

import os
import signal
import socket
import time

import pytest
import tensorflow as tf

import launch
from launch.diagnose import agreement, diagnosis, probe, running
from launch.diagnose.finding import Level
from launch.diagnose.probe_result import ProbeOutcome, ProbeResult
from tf_config import Task

from ..launch_programs import fake_servers
from ..launch_programs.launcher import wait_for
from ..support.deadline import STARTUP_DEADLINE

TIMEOUT = 10.0  # seconds, where there is an answer
SHORT = 0.4  # where there is none


def find(address, timeout=TIMEOUT):
    return probe.probe_all({"worker:0": address}, timeout)["worker:0"]


def words(report):
    (finding,) = diagnosis.each_task({"worker:0": report})
    assert finding.level is Level.WRONG
    assert finding.advice
    return finding.found


def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    report = find(address)
    assert report.outcome is ProbeOutcome.REFUSED
    assert words(report) == f"nothing listens on {address}"


@pytest.mark.parametrize(
    ("first_words", "close", "outcome", "found"),
    [
        (b"", False, ProbeOutcome.SILENT, "accepts connections but does not respond"),
        (b"", True, ProbeOutcome.STRANGER, "it closed the connection"),
        (b"HTTP/1.1 400 \r\n\r\n", False, ProbeOutcome.STRANGER, "HTTP: b'HTTP/1"),
        (b"SSH-2.0-Open\r\n", False, ProbeOutcome.STRANGER, "SSH: b'SSH-2.0-Open"),
        (b"\x15\x03\x01\x00\x02\x02\x46", True, ProbeOutcome.STRANGER, "TLS: "),
        (b"\x1b[2J hello", False, ProbeOutcome.STRANGER, r"(b'\x1b[2J hello')"),
    ],
)
def test_what_is_no_grpc_server(first_words, close, outcome, found):
    with fake_servers.talking(first_words, close=close) as address:
        report = find(address, SHORT)
    assert report.outcome is outcome
    assert found in words(report)


def test_a_server_of_http_2_that_says_no_more():
    settings = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    with fake_servers.talking(settings) as address:
        report = find(address, SHORT)
    assert report.outcome is ProbeOutcome.SILENT
    assert "DEADLINE_EXCEEDED" in words(report)


def test_a_grpc_server_that_is_not_tensorflows():
    with fake_servers.grpc_server({}) as address:
        report = find(address)
    assert report.outcome is ProbeOutcome.NOT_TENSORFLOW
    assert "an HTTP/2 server that is not TensorFlow's" in words(report)


@pytest.mark.parametrize("answer", [b"", b"\x0a", b"\x0a\x05\x0a\x03abc", b"\xff" * 20])
def test_a_server_whose_answers_are_garbage(answer):
    with fake_servers.grpc_server(
        {"WorkerService/GetStatus": lambda *_: answer}
    ) as address:
        assert find(address).outcome is ProbeOutcome.NOT_TENSORFLOW


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70])
def test_a_host_that_there_is_not(host):
    report = find(f"{host}:2222")
    assert report.outcome is ProbeOutcome.NO_SUCH_HOST
    assert f"the host of {host}:2222 cannot be resolved here" in words(report)


def test_the_stunnel_of_a_job_is_not_to_be_stopped():
    report = ProbeResult("127.0.0.1:10000", ProbeOutcome.STRANGER, "it closed")
    ours = {"ps:0": "process 7 (/usr/bin/stunnel -fd 11)"}
    (finding,) = diagnosis.each_task({"ps:0": report}, ours)
    assert finding.level is Level.WRONG
    assert "ps:0 does not behind it" in finding.found
    assert "Leave stunnel running" in finding.advice


def test_a_lookup_that_never_ends_and_others_beside_it(monkeypatch):
    look_up = socket.getaddrinfo

    def hang(host, *args, **kwargs):
        if host == "slow":
            time.sleep(600)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with fake_servers.talking(b"SSH-2.0-x\r\n") as address:
        reports = probe.probe_all({"a": "slow:1", "b": address}, SHORT)
    assert reports["a"].outcome is ProbeOutcome.LOOKUP_SLOW
    assert reports["b"].outcome is ProbeOutcome.STRANGER


def test_an_address_that_answers_not_at_all(monkeypatch):
    def time_out(self, address):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket.socket, "connect", time_out)
    report = find("127.0.0.1:1")
    assert report.outcome is ProbeOutcome.UNREACHABLE
    assert words(report) == "127.0.0.1:1 cannot be reached (timed out)"


def test_the_best_of_a_hosts_addresses_counts(monkeypatch):
    def two(host, port, **_):
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, (ip, port)) for ip in ("127.0.0.9", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    with fake_servers.tensorflow_server("worker:0") as address:
        report = find(f"name:{address.split(':')[1]}")
    assert (report.outcome, report.ip) == (ProbeOutcome.TENSORFLOW, "127.0.0.1")
    assert report.is_here


def test_a_server_that_answers_and_tells_nothing_else():
    with fake_servers.tensorflow_server("chief:0") as address:
        report = find(address)
    assert report.peer.task == "chief:0"
    assert report.peer.version == "9.8.7"
    assert report.peer.tf_config is None
    task, definition = diagnosis.each_task({"worker:0": report})
    assert task.found == f"the server on {address} is chief:0, not worker:0"
    assert definition.level is Level.UNKNOWN
    assert "only a task that tfdist started or joined reports them" in definition.found


@pytest.fixture
def tasks(servers):
    """The addresses of the servers that the tests share; the chief is this process."""
    cluster = servers.tf_config.cluster
    return {str(each): cluster.address(each) for each in cluster.tasks()}


def without_chief(tasks):
    return {task: address for task, address in tasks.items() if task != "chief:0"}


@pytest.mark.cluster
def test_servers_of_tensorflow_tell_who_they_are(tasks):
    def published():
        # A server listens a moment before it tells its cluster.
        found = probe.probe_all(without_chief(tasks), TIMEOUT)
        return found if all(each.peer.tf_config for each in found.values()) else None

    reports = wait_for(published, "cluster of each server")
    for task, report in reports.items():
        assert report.peer.task == task
        assert report.peer.version == tf.__version__
        assert abs(report.peer.clock) < 1
        assert diagnosis._addresses_of(report.peer.tf_config) == tasks
    found = agreement.between_tasks(reports)
    assert {each.level for each in found} == {Level.OK}
    assert {each.check for each in found} == {"version", "clock"}
    # Nothing of it is left behind: a second time is as the first.
    again = probe.probe_all(without_chief(tasks), TIMEOUT)
    assert [each.peer.task for each in again.values()] == [*reports]


@pytest.mark.cluster
def test_the_server_of_another_cluster(tasks):
    reports = probe.probe_all({"ps:0": tasks["ps:0"]}, TIMEOUT)
    task, definition = diagnosis.each_task(reports)
    assert task.level is Level.OK
    assert definition.level is Level.WRONG
    assert (
        "ps:0 was given different addresses: to that task, chief:0 is "
        f"{tasks['chief:0']}; here it is not in the cluster"
    ) == definition.found


@pytest.mark.cluster
def test_a_server_that_is_stopped_is_named_with_its_process(tmp_path):
    # Servers of its own: TensorFlow in this process would wait for one of its cluster.
    patient = {"startup_timeout": STARTUP_DEADLINE}
    with launch.servers(1, 1, log_dir=str(tmp_path), **patient) as servers:
        pid = servers.pids["ps:0"]
        address = servers.tf_config.cluster.address(Task("ps", 0))
        os.kill(pid, signal.SIGSTOP)
        try:
            reports = probe.probe_all({"ps:0": address}, SHORT)
            processes = running.listeners(reports)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert reports["ps:0"].outcome is ProbeOutcome.SILENT
    (finding,) = diagnosis.each_task(reports, processes)
    assert f"it is process {pid} (" in finding.found
    assert finding.found.endswith(f"which is stopped: kill -CONT {pid}")


@pytest.mark.cluster
def test_this_process_tells_too_once_it_has_joined(strategy, servers, tasks):
    reports = probe.probe_all({"chief:0": tasks["chief:0"]}, TIMEOUT)
    text = reports["chief:0"].peer.tf_config
    assert text == servers.tf_config.to_json()
    assert servers.tf_config.task == Task("chief", 0)
