"""The program that runs a task on a host, run here without a connection."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from launch.network import ports
from launch.remote import channel, memory
from launch.supervise import remote_process

from ..launch_programs.launcher import DEADLINE, marked, small_cgroup, wait_for

pytestmark = pytest.mark.slow

LISTENS = """
import os, socket, sys, time
listener = socket.create_server(("", int(sys.argv[1])))
print("ready", flush=True)
time.sleep(600)
"""


class Host:
    """Agents on this machine, and all that comes of them."""

    def __init__(self, directory):
        self.directory = directory
        self.mark = f"mark-{directory.name}-{os.getpid()}"
        self.agents = []

    def start(self, *argv, before="", **changes):
        asked = {
            **{"argv": [sys.executable, *argv], "env": {"MARK": self.mark}},
            **{"cwd": str(self.directory), "port": None, "report": None, "closed": []},
            **{"address": f"{self.mark} {len(self.agents)}"},
            **{"lease": DEADLINE, "stall_timeout": DEADLINE, **changes},
        }
        agent = subprocess.Popen(
            ["sh", "-c", before + channel.command(channel.AGENT, sys.executable)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.agents.append(agent)
        agent.stdin.write(channel.request(channel.AGENT, asked))
        agent.stdin.flush()
        return agent

    def wait_until_nothing_is_left(self):
        wait_for(lambda: not marked(self.mark), "end of the last process")


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path)
    yield host
    for agent in host.agents:
        agent.kill()
        agent.wait(DEADLINE)
        for stream in (agent.stdin, agent.stdout, agent.stderr):
            # What it was sent may not have been read.
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    host.wait_until_nothing_is_left()


def end_of(agent):
    """What an agent that nobody tells to end has told: its exit, its output, the rest."""
    output = agent.stdout.read().decode()
    events = list(map(channel.event, agent.stderr.read().decode().splitlines()))
    agent.wait(DEADLINE)
    assert events[-1]["event"] == "exit"
    return events[-1], output, events[:-1]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('done')", 0),
        ("import sys; sys.exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import sys; sys.exit(137)", 137),
    ],
)
def test_the_exit_of_a_task_is_told_as_it_was(host, code, expected):
    exit, _, events = end_of(host.start("-c", code))
    assert exit["code"] == expected
    assert exit["cpu"] > 0
    assert exit["why"] == ""
    assert [each["event"] for each in events] == ["started"]


def test_a_task_that_takes_all_memory_is_told_from_one_that_is_killed(host):
    with small_cgroup() as enter:
        agent = host.start("-c", "bytearray(2**30)", before=f"{enter}; ")
        exit, _, _ = end_of(agent)
    assert exit["code"] == -9
    assert exit["why"].startswith("probably out of memory: it used 0.")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (7, "this machine")),
        # The root of cgroup v2 counts nothing, unless it is that of a container.
        ({"/proc/self/cgroup": "0::/\n"}, (7, "this machine")),
        (
            {
                "/proc/self/cgroup": "0::/\n",
                "/sys/fs/cgroup/memory.events": "oom 3\noom_kill 2\n",
            },
            (2, "its cgroup"),
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/job/task\n0::/other\n",
                "/sys/fs/cgroup/memory/memory.oom_control": "oom_kill 5\n",
                "/sys/fs/cgroup/memory/job/task/memory.oom_control": "oom_kill 1\n",
            },
            (1, "its cgroup"),
        ),
    ],
)
def test_processes_killed_elsewhere_on_the_machine_do_not_count(
    monkeypatch, files, expected
):
    files = {"/proc/vmstat": "oom_kill 7\n", **files}
    monkeypatch.setattr(memory, "_read", lambda path: files.get(path, ""))
    measured = memory.measure()
    assert (measured.kills, measured.of) == expected


def test_a_task_gets_its_environment_and_directory(host):
    code = "import os, sys; print(os.getcwd(), os.environ['A'], sys.argv[1:], 'HOME' in os.environ)"
    odd = "a 'b' \"c\" $(d)\n\u00e9"
    agent = host.start("-c", code, odd, env={"A": odd, "MARK": host.mark})
    _, output, _ = end_of(agent)
    assert output == f"{host.directory} {odd} {[odd]!r} True\n"


def test_a_task_that_cannot_be_started(host):
    exit, output, _ = end_of(host.start(argv=["/no/such/python"]))
    assert exit["code"] == 126
    assert "launch: cannot start on" in output
    assert "'/no/such/python'" in output


def test_a_signal_reaches_the_task(host):
    code = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    agent = host.start("-c", code)
    agent.stdout.readline()
    agent.stdin.write(channel.order(signal.SIGTERM))
    agent.stdin.flush()
    assert end_of(agent)[0]["code"] == 5


CATCHES = """
import signal, sys, time
if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("ready", flush=True)
time.sleep(600)
"""


def test_an_engine_that_signals_every_process_ends_only_the_script(host):
    port = ports.pick(1)[0]
    script = host.start("-c", CATCHES, before="trap '' TERM; ")
    server = host.start("-c", LISTENS, str(port), before="trap '' TERM; ", port=port)
    for agent in (script, server):
        agent.stdout.readline()
        agent.terminate()
    for task in marked(host.mark):
        os.kill(task, signal.SIGTERM)
    assert end_of(script)[0]["code"] == 5
    # It serves the chief until the launcher wants it to end.
    time.sleep(0.2)
    assert server.poll() is None
    server.stdin.write(channel.order(signal.SIGTERM))
    server.stdin.flush()
    assert end_of(server)[0]["code"] == -signal.SIGKILL


def test_reports_come_through(host):
    code = "import os; os.write(int(os.environ['FD']), b'{\"event\": \"training\"}\\n')"
    _, _, events = end_of(host.start("-c", code, report="FD"))
    assert json.loads(events[-1]["line"]) == {"event": "training"}


def test_listening_is_told_once_the_very_task_does(host):
    (port,) = ports.pick(1)
    agent = host.start("-c", LISTENS, str(port), port=port)
    events = [channel.event(agent.stderr.readline().decode()) for _ in range(2)]
    assert [each["event"] for each in events] == ["started", "listening"]
    agent.stdin.close()
    host.wait_until_nothing_is_left()


def test_a_port_that_the_last_process_still_has_is_waited_for(host):
    (port,) = ports.pick(1)
    with socket.create_server(("", port)):
        agent = host.start("-c", LISTENS, str(port), port=port)
        time.sleep(0.3)
        assert not marked(host.mark)
    assert agent.stdout.readline() == b"ready\n"


def test_a_task_never_runs_twice(host):
    code = "import time; print('ready', flush=True); time.sleep(600)"
    first = host.start("-c", code, address=host.mark)
    first.stdout.readline()
    second = host.start("-c", code, address=host.mark)
    time.sleep(0.5)
    (running,) = marked(host.mark)
    # Its connection is half open, so that it hears of the end only later.
    first.stdin.close()
    assert second.stdout.readline() == b"ready\n"
    assert running not in marked(host.mark)


def test_a_task_that_is_told_to_end_before_it_begins(host):
    (port,) = ports.pick(1)
    with socket.create_server(("", port)):
        agent = host.start("-c", LISTENS, str(port), port=port)
        agent.stdin.write(channel.order(signal.SIGTERM))
        agent.stdin.flush()
        exit, output, events = end_of(agent)
    assert (exit["code"], output, events) == (128 + signal.SIGTERM, "", [])


FAMILY = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
os.write(1, b"ready\\n")  # In one piece: two processes write.
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["end of input", "silence", "SIGTERM", "SIGKILL"])
def test_nothing_is_left(host, how):
    agent = host.start("-c", FAMILY, lease=5.0 if how == "silence" else DEADLINE)
    assert agent.stdout.readline() + agent.stdout.readline() == b"ready\nready\n"
    assert len(marked(host.mark)) == 2
    if how == "end of input":
        agent.stdin.close()
    elif how == "SIGTERM":
        agent.terminate()
    elif how == "SIGKILL":
        # Nobody is left to end what has left the task's own process.
        left = set(marked(host.mark))
        agent.kill()
        wait_for(lambda: len(set(marked(host.mark)) & left) == 1, "end of the task")
        for pid in marked(host.mark):
            os.kill(pid, signal.SIGKILL)
    host.wait_until_nothing_is_left()


def test_a_task_that_is_alive_as_long_as_it_hears_of_the_launcher(host):
    code = "import time; print('ready', flush=True); time.sleep(8)"
    agent = host.start("-c", code, lease=5.0)
    agent.stdout.readline()
    while agent.poll() is None:
        agent.stdin.write(channel.HEARTBEAT)
        agent.stdin.flush()
        time.sleep(0.1)
    assert end_of(agent)[0]["code"] == 0


def test_what_a_task_leaves_behind_ends_with_it(host):
    code = FAMILY.replace(
        "time.sleep(600)", "os.getsid(0) == os.getpid() or time.sleep(600)"
    )
    assert end_of(host.start("-c", code))[0]["code"] == 0
    host.wait_until_nothing_is_left()


def test_a_stopped_task_is_killed(host):
    code = "import os; os.kill(os.getpid(), 19); print('continued')"
    exit, output, _ = end_of(host.start("-c", code, stall_timeout=0.5))
    assert exit["code"] == -9
    assert "stopped (SIGSTOP) for 0.5 s (--stall_timeout): killing it" in output
    assert "continued" not in output


class Beaten:
    """Stands in for a `RemoteProcess`."""

    def __init__(self):
        self.beats = 0
        self.is_closed = False

    def beat(self):
        self.beats += 1


def test_signs_of_life_come_even_while_the_supervisor_hangs(monkeypatch):
    monkeypatch.setattr(remote_process, "HEARTBEAT_INTERVAL", 0.05)
    one, other = Beaten(), Beaten()
    beating = remote_process.Heartbeat()
    before = signal.getsignal(signal.SIGALRM)
    try:
        beating.add(one)
        beating.add(other)
        # A read that no beat wakes, as a write to a stopped terminal is.
        read_end, write_end = os.pipe()

        def write_after_some():
            try:
                wait_for(lambda: min(one.beats, other.beats) > 3, "signs of life")
            finally:
                os.write(write_end, b"x")

        threading.Thread(target=write_after_some).start()
        assert os.read(read_end, 1) == b"x"
        assert min(one.beats, other.beats) > 3
        one.is_closed = True
        beats = one.beats
        wait_for(lambda: other.beats > 2 * beats, "further signs of life")
        assert one.beats == beats
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(read_end)
        os.close(write_end)
