"""Jobs on three hosts, attacked from a fourth: what it reaches, and what it overhears."""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from launch.secure.authority import Authority

from ..launch_programs.launcher import DEADLINE, SLEEP, marked, wait_for
from ..support.deadline import STARTUP_DEADLINE
from ..support.identities import issue
from .ssh_hosts import HOME, needs_sshd, ssh_hosts
from .test_ssh_hosts import HOSTS, SshLauncher, key_holders, sessions, tunnels

pytestmark = [*needs_sshd, pytest.mark.cluster]

ENTRY = 7000
KNOWN_BYTES = Path(__file__).parents[1] / "programs" / "known_bytes.py"
WEIGHT, EXAMPLE = b"weights of mine!", b"examples of mine"
PATIENCE = STARTUP_DEADLINE

# Stands in for a server: says who it is to everyone who connects.
GREETER = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
job, index = config["task"]["type"], config["task"]["index"]
port = int(config["cluster"][job][index].rpartition(":")[2])
listener = socket.create_server(("", port))
while True:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(f"{job}:{index}".encode())
"""

# Tries every address on the command line, and prints what it gets.
CALLER = """
import json, socket, ssl, sys
pem, *addresses = sys.argv[1:]
found = []
for address in addresses:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 5) as connection:
            connection.settimeout(5)
            if pem != "plain":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                if pem != "none":
                    context.load_cert_chain(pem)
                connection = context.wrap_socket(connection, server_hostname="ps-0.tfdist")
            elif int(port) == 7000:
                connection.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(1000))
            found.append(connection.recv(100).decode("latin-1"))
    except OSError as error:
        found.append(type(error).__name__)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with ssh_hosts(HOSTS, tmp_path_factory.mktemp("sshd")) as hosts:
        yield hosts


@pytest.fixture
def launcher(tmp_path, hosts):
    with SshLauncher(tmp_path, hosts) as launcher:
        yield launcher
        wait_for(lambda: not sessions(hosts), "end of the last session")


def call(hosts, source, pem, *addresses):
    """What a host gets from addresses: plain, or with TLS and a certificate or none."""
    command = [sys.executable, "-c", CALLER, str(pem), *addresses]
    done = subprocess.run(
        hosts.network.command(source, command),
        capture_output=True,
        check=True,
        timeout=2 * DEADLINE,
    )
    return json.loads(done.stdout)


def addresses(launcher):
    status = launcher.jobs("status", "mine").stdout
    found = re.findall(r"^  ((?:ps|worker):\d)  on \S+  \S+:(\d+) ", status, re.M)
    return {name: int(port) for name, port in found}


def refusals(launcher):
    """How many connections each host's stunnel has refused."""
    logs = [launcher.log(f"stunnel-{name}") for name in HOSTS]
    return [log.count(b"SSL_accept: ") for log in logs]


def end(process):
    process.terminate()
    process.communicate(timeout=DEADLINE)


def test_a_stranger_on_the_network_is_refused(launcher, hosts):
    (launcher.directory / "tfdist" / "server.py").write_text(GREETER)
    process = launcher.start(
        "--name=mine", f"--first_port={ENTRY}", launcher.script(SLEEP)
    )
    launcher.wait_for_log("chief")
    ports = addresses(launcher)
    assert [*ports] == ["ps:0", "ps:1", "worker:0", "worker:1"]
    # The hosts of the job reach every task.
    inside = [f"127.0.0.1:{port}" for port in ports.values()]
    for name in HOSTS:
        assert call(hosts, name, "plain", *inside) == [*ports]
    # Another host reaches no port of TensorFlow's, and none of a tunnel to it.
    outside = [hosts.network.address(name) for name in HOSTS]
    direct = [f"{host}:{port}" for host in outside for port in ports.values()]
    assert call(hosts, HOME, "plain", *direct) == ["ConnectionRefusedError"] * 12
    # Nor does a host of the job, but by way of its own tunnel.
    assert call(hosts, "h2", "plain", *direct[:8]) == ["ConnectionRefusedError"] * 8
    # The one port that is open refuses whoever has no certificate of this very job.
    pem = launcher.directory / "other.pem"
    certificate, key = issue(Authority(), ["ps-0.tfdist"])
    pem.write_text(key + certificate)
    entries = [f"{host}:{ENTRY}" for host in outside]
    assert refusals(launcher) == [0, 0, 0]
    for number, how in enumerate(("none", pem, "plain"), 1):
        for answer in call(hosts, HOME, how, *entries):
            refused = answer in ("SSLError", "ConnectionResetError", "")
            assert refused or answer.startswith("\x15"), answer
        wait_for(lambda number=number: refusals(launcher) == [number] * 3, "refusals")
    end(process)


def test_without_tls_the_stranger_gets_in(launcher, hosts):
    """Or else the test above would prove nothing."""
    (launcher.directory / "tfdist" / "server.py").write_text(GREETER)
    process = launcher.start("--name=mine", "--secure=off", launcher.script(SLEEP))
    launcher.wait_for_log("chief")
    ports = addresses(launcher)
    there = f"{hosts.network.address('h0')}:{ports['ps:0']}"
    assert call(hosts, HOME, "plain", there) == ["ps:0"]
    process.terminate()
    _, errors = process.communicate(timeout=DEADLINE)
    assert "WARNING: the ports are open (--secure=off)" in errors


def test_no_key_is_anywhere_even_if_an_agent_is_killed(launcher, hosts):
    """See also `test_nothing_is_left` of test_ssh_hosts.py."""
    process = launcher.start("--name=mine", "--max_restarts=0", launcher.script(SLEEP))
    launcher.wait_for_log("chief")
    stunnels = tunnels(launcher)
    assert key_holders(hosts) == {each.pid for each in stunnels.values()}
    for pid in [process.pid, *marked(launcher.mark)]:
        for name in ("cmdline", "environ"):
            assert b"PRIVATE KEY" not in Path(f"/proc/{pid}/{name}").read_bytes()
    stunnels["h1"].parent().kill()
    # It dies with its agent, and another one, with a key of its own, takes its place.
    wait_for(
        lambda: (
            len(holders := key_holders(hosts)) == 3
            and stunnels["h1"].pid not in holders
        ),
        "next stunnel",
    )
    process.terminate()
    process.communicate(timeout=DEADLINE)
    launcher.wait_until_nothing_is_left()
    assert key_holders(hosts) == set()
    assert tunnels(launcher) == {}
    for path in launcher.directory.rglob("*"):
        assert not path.is_file() or b"PRIVATE KEY" not in path.read_bytes(), path


def test_a_stunnel_that_dies_is_started_again(launcher, hosts):
    (launcher.directory / "tfdist" / "server.py").write_text(GREETER)
    process = launcher.start("--name=mine", launcher.script(SLEEP))
    launcher.wait_for_log("chief")
    ports = addresses(launcher)
    inside = [f"127.0.0.1:{port}" for port in ports.values()]
    victim = tunnels(launcher)["h0"]
    # An engine may send it to every process on a host, long before the end.
    victim.terminate()
    assert call(hosts, "h0", "plain", *inside) == [*ports]
    victim.kill()
    wait_for(lambda: "h0" in (now := tunnels(launcher)) and now["h0"] != victim, "h0")
    for source in HOSTS:
        wait_for(
            lambda at=source: call(hosts, at, "plain", *inside) == [*ports], source
        )
    # A task that comes back has the same address.
    launcher.kill("worker:1")
    wait_for(lambda: call(hosts, "h1", "plain", *inside) == [*ports], "worker:1")
    process.terminate()
    _, errors = process.communicate(timeout=DEADLINE)
    assert "stunnel on h0 was killed by SIGKILL: starting it again" in errors
    assert "restarting worker:1" in errors


def test_a_stunnel_that_does_not_stay_ends_the_job(launcher, hosts):
    process = launcher.start("--max_restarts=1", launcher.script(SLEEP))
    launcher.wait_for_log("chief")
    for _ in range(2):
        victim = tunnels(launcher)["h2"]
        victim.kill()
        wait_for(
            lambda victim=victim: (
                process.poll() is not None
                or tunnels(launcher).get("h2", victim) != victim
            ),
            "next stunnel",
        )
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "stunnel on h2 was killed by SIGKILL, and the tasks cannot do" in errors


class Wire:
    """Counts how often texts are on the wires of all hosts, while it is open."""

    def __init__(self, hosts, texts):
        self.counts = dict.fromkeys(texts, 0)
        self.bytes = 0
        self._is_open = True
        self._threads = []
        for index, name in enumerate([HOME, *hosts.names]):
            assert hosts.network.address(name).endswith(f".{index + 1}")
            wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            wire.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
            wire.bind((hosts.network.outside(name), 3))
            wire.settimeout(0.2)
            listener = threading.Thread(target=self._listen, args=[wire])
            listener.start()
            self._threads.append(listener)

    def _listen(self, wire):
        with wire:
            while self._is_open:
                try:
                    packet = wire.recv(1 << 17)
                except TimeoutError:
                    continue
                self.bytes += len(packet)
                for text in self.counts:
                    self.counts[text] += text in packet

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._is_open = False
        for listener in self._threads:
            listener.join(DEADLINE)


@pytest.mark.parametrize("secure", ["auto", "off"])
def test_what_is_on_the_wire(launcher, hosts, secure):
    shutil.rmtree(launcher.directory / "tfdist")
    with Wire(hosts, [WEIGHT, EXAMPLE]) as wire:
        process = launcher.start(
            *(f"--secure={secure}", "--num_ps=1", "--num_workers=1"),
            *(f"--startup_timeout={PATIENCE:g}", "--env=TF_CPP_MIN_LOG_LEVEL=3"),
            str(KNOWN_BYTES),
        )
        log = lambda: launcher.log("chief")  # noqa: E731
        has_trained = lambda: log().count(b"trained\n") >= 3 or process.poll()  # noqa: E731
        wait_for(has_trained, "third epoch", log, PATIENCE)
        (launcher.directory / "over").touch()
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert wire.bytes > 100_000
    seen = {text: count > 0 for text, count in wire.counts.items()}
    assert seen == {WEIGHT: secure == "off", EXAMPLE: secure == "off"}
