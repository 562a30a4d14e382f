"""A real stunnel at both ends of a connection, on this machine: who gets through."""

import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from launch.network import ports
from launch.remote import host
from launch.remote.identity import Files
from launch.secure import stunnel
from launch.secure.authority import Authority
from launch.secure.stunnel import TunnelRoute
from tf_config import Task

from ..launch_programs.launcher import DEADLINE, wait_for
from ..support.identities import issue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("stunnel") is None,
        reason="there is no stunnel: apt-get install stunnel4",
    ),
]

PS, WORKER = Task("ps", 0), Task("worker", 0)
GREETING = b"hello from ps:0"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)  # Of every gRPC client.


class Ends:
    """The stunnel of the host of ps:0, and others that connect to it."""

    def __init__(self, stack, directory):
        self.stack = stack
        self.directory = directory
        self.authority = Authority()
        self.own, self.entry = ports.pick(2)
        server = stack.enter_context(socket.create_server(("127.0.0.1", self.own)))
        threading.Thread(target=self._serve, args=[server], daemon=True).start()
        self.listener = self.start("server", self.entry, here=[self._route(self.own)])

    def _serve(self, server):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(GREETING)

    def _route(self, port):
        return TunnelRoute(PS, port, f"127.0.0.1:{self.entry}")

    def start(self, name, entry, here=(), there=(), names=(PS,)):
        """Starts a stunnel, and returns its process and the path of its log."""
        certificate, key = issue(self.authority, [*map(stunnel.name, names)])
        files, log = Files(), self.directory / f"{name}.log"
        files.add("authority", self.authority.certificate)
        files.add("certificate", certificate)
        files.add("key", key)
        files.add("config", files.filled(stunnel.configuration(entry, here, there)))
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["stunnel", "-fd", str(files.numbers[-1])],
                pass_fds=files.numbers,
                stderr=output,
            )
        self.stack.callback(process.wait, DEADLINE)
        self.stack.callback(process.kill)
        files.close()
        wait_for(lambda: host.listens(process.pid, entry), "stunnel")
        return process, log

    def through(self, **options):
        """What a task gets at its local address of ps:0, through one more stunnel."""
        address, entry = ports.pick(2)
        there = [self._route(address)]
        self.start(f"client{entry}", entry, there=there, **options)
        return answers(address)

    def await_refusals(self, count):
        wait_for(lambda: len(self.refusals) >= count, f"{count} refusals")
        assert len(self.refusals) == count

    @property
    def refusals(self):
        return re.findall(r"SSL_accept: .*:(.*)", self.listener[1].read_text())


def answers(port, sent=b""):
    """What comes from a port until it hangs up."""
    found = b""
    address = ("127.0.0.1", port)
    # It may hang up before the connection is known to be there.
    with (
        contextlib.suppress(ConnectionResetError),
        socket.create_connection(address, DEADLINE) as connection,
    ):
        connection.sendall(sent)
        while data := connection.recv(1000):
            found += data
    return found


@pytest.fixture
def ends(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Ends(stack, tmp_path)


def test_a_task_of_the_job_gets_through(ends):
    assert ends.through(names=[WORKER]) == GREETING
    assert ends.refusals == []


def test_another_task_of_the_job_cannot_play_this_one(ends, tmp_path):
    """As if a host answered at the address of another one."""
    address, theirs, entry = ports.pick(3)
    route = TunnelRoute(PS, address, f"127.0.0.1:{theirs}")
    here = [TunnelRoute(PS, ends.own, "")]
    ends.start("impostor", theirs, here=here, names=[WORKER])
    _, log = ends.start("victim", entry, there=[route], names=[WORKER])
    assert answers(address) == b""
    assert "CERT: Subject checks failed" in log.read_text()
    assert (
        "s_connect: connected 127.0.0.1:" + str(ends.own)
        not in (tmp_path / "impostor.log").read_text()
    )


class Stranger:
    """Tries to open the entry with a certificate, or without one."""

    def __init__(self, ends, directory, authority=None):
        self.ends = ends
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        if authority:
            certificate, key = issue(authority, [stunnel.name(PS)])
            path = directory / "stranger.pem"
            path.write_text(key + certificate)
            self.context.load_cert_chain(path)

    def tries(self, name):
        address = ("127.0.0.1", self.ends.entry)
        with (
            socket.create_connection(address, DEADLINE) as connection,
            self.context.wrap_socket(connection, server_hostname=name) as opened,
        ):
            opened.settimeout(DEADLINE)
            return opened.recv(1000)


@pytest.mark.parametrize("name", [stunnel.name(PS), "other.tfdist", None])
@pytest.mark.parametrize("whose", ["nobody's", "another job's"])
def test_a_stranger_is_refused_and_counted(ends, tmp_path, whose, name):
    authority = Authority() if whose == "another job's" else None
    stranger = Stranger(ends, tmp_path, authority)
    for _ in range(3):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            stranger.tries(name)
    ends.await_refusals(3)


def test_a_member_of_the_job_would_not_be_refused(ends, tmp_path):
    """Or else the refusals of the others would mean nothing."""
    member = Stranger(ends, tmp_path, ends.authority)
    assert member.tries(stunnel.name(PS)) == GREETING
    # Who names no task reaches none.
    assert member.tries(None) == b""


@pytest.mark.parametrize("sent", [PREFACE, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"])
def test_what_is_not_tls_gets_no_answer(ends, sent):
    answer = answers(ends.entry, sent + bytes(1000))
    # At most an alert of TLS, never the settings of an HTTP/2 server.
    assert answer == b"" or answer[:1] == b"\x15"
    assert GREETING not in answer
    ends.await_refusals(1)


def test_tls_of_an_older_version_is_refused(ends, tmp_path):
    member = Stranger(ends, tmp_path, ends.authority)
    member.context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        member.tries(stunnel.name(PS))
