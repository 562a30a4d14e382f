"""What `launch.ray` decides, without a Ray; see also test_ray_nodes.py."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import launch.ray
from launch import ray
from launch.engines import ray as engine
from launch.engines import (
    ray_bridge_process,
    ray_launcher_process,
    ray_places,
    ray_request,
    ray_reservation,
)
from launch.engines.engine import STARTING, EngineError
from launch.engines.ray_actor_process import Shell
from launch.engines.ray_places import Place
from launch.engines.ray_request import PACK, SPREAD, STRICT_SPREAD, RayRequest
from launch.engines.ray_reservation import Reservation
from launch.engines.record import Record
from launch.job.job import Job
from launch.job.plan import task_name
from launch.loopback import foreground
from tf_config import JOBS, Task

from ..launch_programs.launcher import DEADLINE, wait_for
from .test_launch_fuzz import snares

pytestmark = pytest.mark.usefixtures("here")


counts = st.fixed_dictionaries(
    {"chief": st.integers(0, 1), "ps": st.integers(0, 5), "worker": st.integers(1, 5)}
)


def tasks_of(counts):
    return [Task(job, i) for job in JOBS for i in range(counts.get(job, 0))]


# What Ray is asked for.


@given(counts, st.integers(1, 4), st.integers(0, 2))
def test_every_task_has_a_bundle(counts, cpus, gpus):
    names = [task_name(task) for task in tasks_of(counts)]
    groups = ray_request.groups(names, {"CPU": cpus}, gpus)
    assert sorted(task for group in groups for task in group.tasks) == sorted(names)
    for group in groups:
        assert group.apart == group.tasks[0].startswith("ps")
        for task, bundle in zip(group.tasks, group.bundles(), strict=True):
            wants = gpus if task.startswith("worker") else 0
            assert bundle == {"CPU": cpus, **({"GPU": wants} if wants else {})}


def test_ps_are_apart_if_there_are_enough_nodes_that_can_run_one():
    ps, workers = ray_request.groups(["ps:0", "ps:1", "worker:0"], {"CPU": 2}, 0)
    assert ps.strategy([{"CPU": 4}, {"CPU": 2}, {"CPU": 1}]) == STRICT_SPREAD
    assert ps.strategy([{"CPU": 4}, {"CPU": 1}]) == SPREAD
    assert workers.strategy([{"CPU": 4}, {"CPU": 4}]) == PACK


@pytest.mark.parametrize(
    ("bundle", "nodes", "free", "message"),
    [
        ({"CPU": 4}, [{"CPU": 8}], 8, "it needs 12 CPU, and the cluster has 8"),
        ({"CPU": 4}, [], 0, "it needs 12 CPU, and the cluster has 0"),
        ({"CPU": 4}, [{"CPU": 3}] * 5, 15, "4 CPU, and no node has more than 3"),
        ({"CPU": 4}, [{"CPU": 8}] * 2, 7, "of the cluster's 16 only 7 are free"),
        ({"CPU": 4}, [{"CPU": 8}] * 2, 16, "and no nodes have room for that"),
        (
            {"CPU": 1, "memory": 2**31},
            [{"CPU": 8, "memory": 2**32}],
            8,
            "it needs 6 GiB of memory, and the cluster has 4 GiB",
        ),
    ],
)
def test_what_is_missing_is_named(bundle, nodes, free, message):
    groups = ray_request.groups(["ps:0", "ps:1", "worker:0"], bundle, 0)
    assert message in ray_request.missing(groups, nodes, {"CPU": free})


@pytest.mark.parametrize("text", ["", "0", "4 G", "-1", "4GB", "1.5G", "G", "1" * 13])
def test_a_malformed_amount_of_memory(text):
    with pytest.raises(EngineError):
        ray_request.memory(text)


class FakeRay:
    """Placement groups that become ready as a script says."""

    def __init__(self, *script):
        self.script = list(script)
        self.held = []
        self.removed = 0

    def placement_group(self, bundles, strategy):
        self.held.append(strategy)
        return len(self.held) - 1

    def placement_group_table(self, group):
        turn = self.script[min(self.removed // 2, len(self.script) - 1)]
        return {"state": "CREATED" if turn[group % 2] else "PENDING"}

    def remove_placement_group(self, group):
        self.removed += 1

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 4.0}}] * 2

    def available_resources(self):
        return {"CPU": 1.0}


def install(monkeypatch, fake):
    modules = {"ray": fake, "ray.util": fake, "ray.util.placement_group": fake}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


TWO_GROUPS = ray_request.groups(["chief", "ps:0", "ps:1"], {"CPU": 1}, 0)


def test_a_job_holds_nothing_that_another_waits_for(monkeypatch):
    fake = FakeRay((True, False), (True, True))
    install(monkeypatch, fake)
    monkeypatch.setattr(ray_reservation, "_HOLD_TIMEOUT", 0.2)
    reservation = Reservation(TWO_GROUPS, DEADLINE)
    assert fake.removed == 2  # Both of the first try, before the second.
    assert fake.held == [STRICT_SPREAD, PACK] * 2
    reservation.release()
    assert fake.removed == 4
    reservation.release()
    assert fake.removed == 4


@pytest.mark.parametrize("ready", [(False, False), (True, False)])
def test_all_is_given_back_if_one_part_cannot_be_had(monkeypatch, ready):
    fake = FakeRay(ready)
    install(monkeypatch, fake)
    message = (
        r"within 0\.3 s \(--timeout\): it needs 3 CPU, and of the cluster's 8 only 1 are "
        r"free\. The cluster has 2 nodes: 2 x \(4 CPU\): ask for fewer tasks"
    )
    with pytest.raises(EngineError, match=message):
        Reservation(TWO_GROUPS, 0.3)
    assert fake.removed == len(fake.held) == 2


# Where the tasks are.


def places(**where):
    return {
        task.replace("_", ":"): Place(node, f"10.0.0.{node[-1]}", "/python", (task,))
        for task, node in where.items()
    }


def test_a_layout_follows_the_places():
    tasks = [Task("chief", 0), Task("ps", 0), Task("worker", 0)]
    # Ray's order is another: its groups begin with the ps.
    found = places(ps_0="n2", chief="n1", worker_0="n1")
    layout = ray_places.layout(tasks, found)
    assert [host.name for host in layout.hosts] == ["10.0.0.1", "10.0.0.2"]
    assert [layout.where[task] for task in tasks] == [0, 1, 0]
    assert ray_places.connections(tasks, found) == [("chief",), ("ps_0",)]
    assert ray_places.python(found) == "/python"


def test_nodes_of_one_machine_have_names_of_their_own():
    tasks = [Task("chief", 0), Task("ps", 0)]
    one = Place("node-one", "fe80::1", "/python", ())
    found = {"chief": one, "ps:0": Place("node-two", "fe80::1", "/python", ())}
    layout = ray_places.layout(tasks, found)
    names = [host.name for host in layout.hosts]
    assert names == ["fe80::1/node-one", "fe80::1/node-two"]
    assert layout.addresses == ["[fe80::1]"] * 2


def test_nodes_with_different_interpreters():
    found = places(chief="n1")
    found["ps:0"] = Place("n2", "10.0.0.2", "/other", ())
    message = r"runs /python on 10\.0\.0\.1, but /other on 10\.0\.0\.2: give --python"
    with pytest.raises(EngineError, match=message):
        ray_places.python(found)


# What runs on a node.


def read_all(shell, key):
    found = {1: b"", 2: b""}
    while parts := shell.read(key, DEADLINE):
        for name, data in parts.items():
            found[name] += data
    return found


def test_a_shell_passes_on_input_output_and_errors():
    shell = Shell()
    key = shell.start("cat; echo problem >&2")
    other = shell.start("cat")
    data = os.urandom(1_000_000)  # More than the pipes hold.
    writer = threading.Thread(target=shell.write, args=[key, data])
    writer.start()
    got = b""
    while len(got) < len(data):
        got += shell.read(key, DEADLINE)[1]
    writer.join()
    assert got == data
    shell.end_input(key)
    assert read_all(shell, key) == {1: b"", 2: b"problem\n"}
    shell.write(key, b"more")  # Nobody reads it any more.
    shell.end_input(key)
    shell.write(other, b"other")
    shell.end_input(other)
    assert read_all(shell, other) == {1: b"other", 2: b""}


def test_a_line_outlives_a_kill_of_the_actors_children_but_not_its_input(tmp_path):
    shell = Shell()
    line = f"echo $PPID $$; cat; touch {tmp_path}/ended"
    key = shell.start(line)
    parent, _ = map(int, shell.read(key, DEADLINE)[1].split())
    assert parent != os.getpid()
    shell.end_input(key)
    wait_for(lambda: (tmp_path / "ended").exists(), "end of the line")


def bridge(name, **options):
    command = [
        sys.executable,
        "-I",
        "-S",
        ray_bridge_process.__file__,
        name,
        "ps:0",
        "a line",
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def test_a_bridge_hands_over_its_files_and_ends_with_the_status():
    name = f"tfdist test {os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        process = bridge(name, stdout=subprocess.PIPE)
        link, _ = listener.accept()
        with link:
            message, fds, _, _ = socket.recv_fds(link, ray_bridge_process.MOST, 3)
            assert json.loads(message) == {"task": "ps:0", "line": "a line"}
            os.write(fds[1], b"output")
            os.write(fds[2], b"errors")
            for each in fds:
                os.close(each)
            link.send(b"3")
        assert process.communicate(timeout=DEADLINE) == ("output", "errors")
        assert process.returncode == 3
        # A driver that dies has said nothing.
        process = bridge(name)
        listener.accept()[0].close()
        assert process.wait(DEADLINE) == ray_bridge_process.LOST
        process.stderr.close()
    _, errors = (process := bridge(name)).communicate(timeout=DEADLINE)
    assert process.returncode == ray_bridge_process.LOST
    assert "the job's connection to Ray has gone" in errors


def test_both_ends_serve_their_own_user_alone(monkeypatch):
    one, other = socket.socketpair()
    with one, other:
        assert ray_bridge_process.peer_is_same_user(one)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert not ray_bridge_process.peer_is_same_user(one)


# The command.


def test_a_dry_run_asks_nobody(capsys):
    command = ["launch.ray", "--dry_run", "--num_ps=2", "--num_workers=4"]
    flags = ["--gpus_per_worker=1", "--memory=4G", "--address=h:1", "--timeout=7"]
    with mock.patch.object(ray_launcher_process, "DriverHandle") as started:
        assert ray.main([*command, *flags, "train.py", "a b", "--dry_run"]) == 0
    assert not started.called
    head, env, *rest = capsys.readouterr().out.splitlines()
    assert head == (
        '# Ray at "h:1", within 7 s: 2 x (1 CPU and 4 GiB of memory) on different nodes '
        "and 1 x (1 CPU and 4 GiB of memory) and 4 x (1 CPU and 4 GiB of memory and "
        "1 GPU)"
    )
    shipped = json.loads(env.removeprefix("# runtime_env: "))
    assert shipped["working_dir"] == os.getcwd()
    names = [
        line.split()[1] for line in rest if line.startswith("# ") and " on " in line
    ]
    assert names == ["chief", "ps:0", "ps:1", *(f"worker:{i}" for i in range(4))]
    assert rest[2].endswith(" python train.py 'a b' --dry_run")


def requested(*flags):
    with mock.patch.object(engine, "render", return_value="") as render:
        assert ray.main(["launch.ray", "--dry_run", *flags, "train.py"]) == 0
    return render.call_args.args[0]


def test_the_directory_is_shipped_without_what_the_job_writes_there():
    env = requested("--log_dir=logs/x", "--checkpoint_dir=ck").request.runtime_env
    assert env == {"working_dir": os.getcwd(), "excludes": ["/logs/x", "/ck"]}
    env = requested("--log_dir=/logs", '--runtime_env={"excludes": ["*.csv"]}')
    assert env.request.runtime_env == {
        "working_dir": os.getcwd(),
        "excludes": ["*.csv"],
    }
    given = '{"pip": ["rich"], "working_dir": "s3://bucket/code.zip"}'
    assert requested(f"--runtime_env={given}").request.runtime_env == json.loads(given)
    Path("env.json").write_text('{"env_vars": {"A": "1"}}')
    job = requested("--runtime_env=env.json", "--work_dir=/data")
    assert job.request.runtime_env == {"env_vars": {"A": "1"}}
    assert {plan.remote.cwd for plan in job.example.plans} == {"/data"}


@pytest.mark.parametrize(
    ("script", "argument"),
    [
        ("HERE/train.py", "train.py"),
        ("HERE/a/train.py", "a/train.py"),
        ("/elsewhere/train.py", "/elsewhere/train.py"),
        ("a/../train.py", "a/../train.py"),
    ],
)
def test_a_script_is_found_where_it_is_shipped(script, argument):
    with mock.patch.object(engine, "render", return_value="") as render:
        ray.main(["launch.ray", "--dry_run", script.replace("HERE", os.getcwd())])
    plan = render.call_args.args[0].example.plans[0]
    assert plan.argv[1:] == (argument,)


def test_without_ray(monkeypatch):
    Path("train.py").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = re.escape(
        "Ray is not installed here: pip install 'ray>=2.60' (the extra `ray`)"
    )
    with pytest.raises(EngineError, match=message):
        ray.main(["launch.ray", "train.py"])
    with pytest.raises(EngineError, match=message):
        launch.ray.Executor(num_workers=1).start()


@pytest.mark.not_in_gate
@settings(max_examples=40, deadline=None)
@given(st.lists(snares, min_size=1, max_size=4), snares)
def test_what_is_rendered_carries_everything_through_a_shell(
    tmp_path_factory, args, address
):
    directory = tmp_path_factory.mktemp("ray")
    seen = "import json, sys; print(json.dumps(sys.argv[1:]))"
    (directory / "train.py").write_text(seen)
    plans = requested("--num_ps=0", "--num_workers=1").example.plans
    request = RayRequest(address, (), {}, 1.0)
    argv = (sys.executable, str(directory / "train.py"), *args)
    job = Job("every_task", (_with_argv(plans[0], argv),), "logs")
    text = engine.render(engine.RayJob(request, job, lambda places: job))
    done = subprocess.run(
        ["sh"],
        input=text.encode(),
        cwd=directory,
        capture_output=True,
        timeout=DEADLINE,
    )
    assert json.loads(done.stdout) == args, done.stderr
    assert not (directory / "pwned").exists()


def _with_argv(plan, argv):
    return replace(plan, argv=tuple(argv))


# Tasks that move.


class FakeDriver:
    """A driver whose tasks move as often as there are `moves`."""

    moves = 0
    runs = 0
    event: ClassVar = {"moved": "ps:0", "was": "10.0.0.1", "now": "10.0.0.2"}
    places_left = 99

    def __init__(self, request, log, keep):
        self.pid = 1
        type(self).runs += 1

    def places(self):
        if type(self).runs > type(self).places_left:
            raise EngineError("Ray has no room")
        return {}

    def fileno(self):
        return 1

    def watch(self, moved):
        if type(self).runs <= type(self).moves:
            moved(self.event)

    def close(self):
        pass


def run_job(monkeypatch, tmp_path, *, moves, codes, max_restarts=3, interrupt=False):
    """Runs a job whose supervisor is a stand-in: its status, and the log directories."""
    monkeypatch.setattr(FakeDriver, "moves", moves)
    monkeypatch.setattr(FakeDriver, "runs", 0)
    monkeypatch.setattr(engine, "DriverHandle", FakeDriver)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    seen = []

    def run(job, keep, *, spare, on_start, on_signal):
        handle = mock.Mock()
        on_start(handle)
        if handle.signal.called and interrupt:
            on_signal(15)
        seen.append(job.log_dir)
        return codes[min(len(seen), len(codes)) - 1]

    monkeypatch.setattr(foreground, "run", run)
    example = requested("--num_ps=1", f"--max_restarts={max_restarts}").example
    example = Job(**{**vars(example), "log_dir": str(tmp_path / "logs")})
    job = engine.RayJob(
        RayRequest("auto", (), {}, 1.0), example, lambda places: example
    )
    record = Record("mine", "ray", str(tmp_path / "logs"), "", {}, 1.0)
    code = engine.run(job, record)
    assert record.end == {"code": code}
    return code, [Path(each).name for each in seen]


@pytest.mark.parametrize(
    ("moves", "codes", "interrupt", "expected"),
    [
        (2, [143, 143, 0], False, (0, ["logs", "move-1", "move-2"])),
        # It has succeeded, or the user has ended it.
        (1, [0], False, (0, ["logs"])),
        (1, [143], True, (143, ["logs"])),
        (9, [143], False, (255, ["logs", "move-1", "move-2", "move-3"])),
    ],
)
def test_a_job_whose_tasks_move_starts_again(
    monkeypatch, tmp_path, moves, codes, interrupt, expected
):
    options = {"moves": moves, "codes": codes, "interrupt": interrupt}
    assert run_job(monkeypatch, tmp_path, **options) == expected


def test_more_workers_are_no_fault(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(FakeDriver, "event", {"granted": 2})
    found = run_job(monkeypatch, tmp_path, moves=1, codes=[143, 0], max_restarts=0)
    assert found == (0, ["logs", "move-1"])
    assert "Ray has room for 2 more of the workers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lost", "min_workers", "is_spared"),
    [
        (["worker:1"], 1, True),
        (["worker:1", "worker:1"], 1, True),
        (["worker:1", "worker:0"], 1, False),
        (["worker:1"], 2, False),
        (["worker:1"], None, False),
        (["ps:0"], 1, False),
    ],
)
def test_workers_that_can_be_spared_move_nobody(lost, min_workers, is_spared, capsys):
    asked = [] if min_workers is None else [f"--min_workers={min_workers}"]
    moved = engine._Moved(requested("--num_ps=1", *asked).example)
    handle = mock.Mock()
    for task in lost:
        moved.hear(handle, {"moved": task, "was": "10.0.0.1", "now": ""})
    assert moved.came is not is_spared
    assert handle.signal.called is not is_spared
    told = capsys.readouterr().err.count("the job goes on without it")
    assert told == (min_workers == 1 and lost != ["ps:0"])


def test_what_a_job_needs_and_what_may_come_later():
    request = requested("--num_ps=1", "--num_workers=4", "--min_workers=2").request
    needed = [task for group in request.groups for task in group.tasks]
    assert sorted(needed) == ["chief", "ps:0", "worker:0", "worker:1"]
    assert [group.tasks for group in request.later] == [("worker:2",), ("worker:3",)]
    # It could not go on from a checkpoint.
    assert not request.may_grow
    more = requested("--min_workers=1", "--checkpoint_dir=a").request
    assert more.may_grow
    all_of_them = requested("--checkpoint_dir=a").request
    assert (all_of_them.later, all_of_them.may_grow) == ((), False)


def test_a_job_that_finds_no_place_any_more(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(FakeDriver, "places_left", 1)
    found = run_job(monkeypatch, tmp_path, moves=1, codes=[143, 0])
    assert found == (255, ["logs"])
    assert "cannot go on elsewhere: Ray has no room" in capsys.readouterr().err


def test_a_job_that_waits_for_ray(tmp_path):
    record = Record("mine", "ray", str(tmp_path), "", {}, 1.0)
    with record.held():
        status = engine.status(record)
    assert status.state == STARTING
    assert str(status) == "starting: Ray has not reserved what it needs yet"


# The executor.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "must be an integer of at least 1; received 0"),
        ({"num_workers": 1.5}, "num_workers must be an integer"),
        ({"num_workers": 1, "cpus_per_worker": 0}, "cpus_per_worker must be"),
        ({"num_workers": 1, "gpus_per_worker": -1}, "gpus_per_worker must be"),
        ({"num_workers": 1, "timeout": 0}, "timeout must be > 0 seconds; received 0"),
        ({"num_workers": 1, "timeout": float("nan")}, "timeout must be > 0 seconds"),
        ({"num_workers": 1, "secure": "tls"}, "since an executor has no TLS; received"),
        ({"num_workers": 1, "memory": "big"}, "'big' is no amount of memory"),
    ],
)
def test_an_executor_refuses_what_cannot_be(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        launch.ray.Executor(**options)


def test_an_executor_that_was_not_started():
    executor = launch.ray.Executor(num_workers=1)
    for call in (lambda: executor.run(print), lambda: executor.execute(print)):
        with pytest.raises(
            RuntimeError, match=r"are not running: call start\(\) first"
        ):
            call()
    executor.shutdown()
