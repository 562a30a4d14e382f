"""Who reaches the ports of a job on this machine, tried from another one."""

import json
import os
import signal
import subprocess
import sys
from errno import EACCES, EBUSY, ENOSYS, EPERM

import psutil
import pytest

import launch
from launch import chaos, local
from launch.flags import command_line
from launch.network import loopback_only, private_network, reach
from launch.network.namespaces import network

from ..launch_programs.launcher import DEADLINE, PROGRAMS, Launcher
from ..support import jobs
from ..support.namespaces import needs_root

not_confined = loopback_only.why_not()
# Any other error would be ours.
refusals = tuple(os.strerror(each) for each in (EACCES, EBUSY, ENOSYS, EPERM))
needs_confinement = pytest.mark.skipif(
    not_confined.endswith(refusals), reason=not_confined
)

CHIEF = """
import os, socket, sys, time
port = int(os.environ["TF_CONFIG"].split('"chief":["127.0.0.1:')[1].split('"')[0])
listener = socket.create_server(("", port))
print(os.environ["TF_CONFIG"], flush=True)
time.sleep(600)
"""
STRANGER = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), 5)
    except OSError as error:
        print(type(error).__name__)
    else:
        print("connected")
"""


@pytest.fixture
def hosts():
    with network(["home", "stranger"]) as hosts:
        yield hosts


@pytest.mark.namespaces
@needs_root
@pytest.mark.parametrize(
    ("mode", "outcome", "notice"),
    [
        pytest.param(
            *("auto", "ConnectionRefusedError"),
            "the ports are closed to other machines",
            marks=needs_confinement,
        ),
        ("private", "ConnectionRefusedError", "the job has its own network"),
        ("open", "connected", "anyone who can reach 10.87.0.1 can run code as "),
    ],
)
def test_a_stranger_on_the_network(hosts, tmp_path, mode, outcome, notice):
    with Launcher(tmp_path, hosts.command("home", [])) as launcher:
        process = launcher.start(f"--network={mode}", launcher.script(CHIEF))
        launcher.wait_for_log("chief", b"}}\n")
        cluster = json.loads(launcher.log("chief"))["cluster"]
        ports = [address.split(":")[1] for job in cluster.values() for address in job]
        assert len(ports) == 5
        command = [sys.executable, "-c", STRANGER, hosts.address("home"), *ports]
        stranger = subprocess.run(
            hosts.command("stranger", command),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert stranger.stdout.split() == [outcome] * 5
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE)
        assert notice in errors


@pytest.mark.cluster
@needs_confinement
def test_the_servers_of_tensorflow_listen_on_loopback(servers):
    for pid in servers.pids.values():
        sockets = psutil.Process(pid).net_connections("tcp")
        (listening,) = [each for each in sockets if each.status == psutil.CONN_LISTEN]
        assert listening.laddr.ip in ("127.0.0.1", "::ffff:127.0.0.1")


def run_python(code):
    """Runs code in a process that may be confined for good."""
    return jobs.run("-c", code).stdout


BINDS = """
import os, socket, sys, threading
from launch.network.loopback_only import LoopbackOnly
from launch.network.ports import pick

ours, other = pick(2)
confined = LoopbackOnly([ours])

def bind(family, address):
    with socket.socket(family) as tried:
        tried.bind(address)
        return tried.getsockname()

def child():
    if os.fork():
        os.wait()  # The binds are a grandchild's.
        os._exit(0)
    v4, v6, unix = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX
    print(bind(v4, ("0.0.0.0", ours))[0])
    print(bind(v4, ("127.0.0.2", ours))[0])
    print(bind(v4, ("0.0.0.0", other))[0])
    if socket.has_dualstack_ipv6():
        print(bind(v6, ("::", ours))[0], bind(v6, ("::", other))[0])
    else:
        print("::ffff:127.0.0.1 ::")
    print(bind(unix, chr(0) + str(os.getpid()))[:1])
    try:
        bind(v4, ("192.0.2.99", ours))
    except OSError as error:
        print(error.strerror)
    sys.stdout.flush()
    os._exit(0)

if (pid := os.fork()) == 0:
    child()
thread = threading.Thread(target=lambda: [confined.answer() for _ in iter(int, 1)])
thread.daemon = True
thread.start()
os.waitpid(pid, 0)
"""


@needs_confinement
def test_only_binds_of_the_jobs_ports_to_every_interface_are_redirected():
    assert run_python(BINDS).splitlines() == [
        "127.0.0.1",
        "127.0.0.2",
        "0.0.0.0",
        "::ffff:127.0.0.1 ::",
        "b'\\x00'",
        "Cannot assign requested address",
    ]


BECOME_NOBODY = """
import ctypes, os
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # As after an execve: its own /proc is its own.
"""


@needs_root
@needs_confinement
def test_confinement_needs_no_rights():
    code = "from launch.network import loopback_only\n" + BECOME_NOBODY
    assert run_python(code + "print(repr(loopback_only.why_not()))") == "''\n"


PRIVATE = """
try:
    private_network.enter()
except OSError as error:
    print("refused:", error)
    raise SystemExit
listener = socket.create_server(("127.0.0.1", 0))
with socket.socket() as client:
    client.connect(listener.getsockname())
print(os.getuid(), [name for _, name in socket.if_nameindex()])
"""


@pytest.mark.namespaces
@needs_root
@pytest.mark.parametrize("become", ["import os", BECOME_NOBODY])
def test_a_private_network_is_loopback_alone(become):
    output = run_python(
        f"import socket\nfrom launch.network import private_network\n{become}\n{PRIVATE}"
    )
    if output.startswith("refused"):
        pytest.skip(f"unprivileged user namespaces are {output}")
    user, interfaces = output.split(maxsplit=1)
    assert user == ("65534" if become is BECOME_NOBODY else "0")
    assert "'lo'" in interfaces
    assert "eth" not in interfaces


def test_a_protection_that_is_not_to_be_had(monkeypatch):
    monkeypatch.setattr(loopback_only, "why_not", lambda: "seccomp(2): none here")
    monkeypatch.setattr(reach, "addresses", lambda: ["10.1.2.3", "fd00::7"])
    protection = reach.protect("auto", [2222])
    assert protection.is_open
    assert protection.notice.startswith(
        "WARNING: the ports are open (they cannot be closed, seccomp(2): none here): "
        "anyone who can reach 10.1.2.3 or fd00::7 can run code as "
    )
    with pytest.raises(reach.ProtectionError, match="none here.*--network=private"):
        reach.protect("loopback", [2222])

    def refuse():
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(private_network, "enter", refuse)
    with pytest.raises(reach.ProtectionError):
        reach.protect("private", [2222])


def test_the_addresses_are_those_that_others_reach(monkeypatch):
    address = type("Address", (), {})
    found = []
    for family, text in ((2, "127.0.0.1"), (2, "10.1.2.3"), (10, "fe80::1%eth0")):
        each = address()
        each.family, each.address = family, text
        found.append(each)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": found})
    assert reach.addresses() == ["10.1.2.3"]


def test_a_machine_that_is_not_known(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert loopback_only.why_not() == "seccomp(2): Function not implemented"


@pytest.mark.parametrize("command", [local, chaos])
def test_a_machine_without_linux(monkeypatch, capsys, command, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sys, "argv", ["launch", str(script)])
    with pytest.raises(SystemExit) as exit:
        command_line.run(command.main, "launch")
    assert exit.value.code == 2
    assert "needs Linux; this is darwin" in capsys.readouterr().err


def test_a_chief_in_this_process_cannot_be_let_into_a_private_network():
    with (
        pytest.raises(
            ValueError, match="would lock out this process, which is the chief"
        ),
        launch.servers(network="private"),
    ):
        pass


def test_a_network_that_there_is_not():
    with pytest.raises(launch.PlanError):
        launch.Job("coordinator", (), "logs", network="closed")


def test_open_servers_are_warned_of(tmp_path):
    options = {"log_dir": str(tmp_path), "server": (str(PROGRAMS / "server.py"),)}
    with (
        pytest.warns(UserWarning, match="the ports are open"),
        launch.servers(network="open", **options) as servers,
    ):
        assert len(servers.pids) == 2
