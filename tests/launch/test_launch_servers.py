"""A job that is started by a Python program, and servers for a chief of its own."""

import dataclasses
import json
import os
import re
import signal
import socket
import sys
import time

import psutil
import pytest

import launch
from launch.remote import host
from tf_config import ClusterError

from ..launch_programs.launcher import PROGRAMS, ROOT, marked
from ..support.deadline import STARTUP_DEADLINE
from ..support.processes import still_running


@pytest.fixture
def serve(launcher, monkeypatch, tmp_path):
    monkeypatch.setenv("TEST_MARK", launcher.mark)

    def serve(**options):
        server = (str(PROGRAMS / "server.py"),)
        return launch.servers(2, 2, server=server, log_dir=str(tmp_path), **options)

    return serve


@pytest.fixture
def serve_late(launcher, monkeypatch, tmp_path):
    """Servers with a fork server that never gets ready."""
    package = tmp_path / "tfdist" / "fork_server"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("TEST_MARK", launcher.mark)
    monkeypatch.chdir(tmp_path)  # `python -m` finds the stand-ins here.
    monkeypatch.setenv("PYTHONPATH", ROOT)
    return launch.servers(1, 1, log_dir=str(tmp_path), startup_timeout=4.0)


def test_servers_listen_within_the_context_and_are_gone_after_it(
    serve, launcher, capfd
):
    with serve() as servers:
        assert [*servers.pids] == ["ps:0", "ps:1", "worker:0", "worker:1"]
        assert set(servers.pids.values()) < set(marked(launcher.mark))
        assert str(servers.tf_config.task) == "chief:0"
        for task, pid in zip(
            servers.tf_config.cluster.ps, servers.pids.values(), strict=False
        ):
            assert host.listens(pid, int(task.rpartition(":")[2]))
    assert marked(launcher.mark) == []
    assert capfd.readouterr() == ("", "")


def test_servers_are_gone_after_an_exception(serve, launcher):
    with pytest.raises(KeyboardInterrupt), serve():
        raise KeyboardInterrupt
    assert marked(launcher.mark) == []


def test_server_may_be_killed_without_the_others(serve):
    with serve() as servers:
        first, *others = map(psutil.Process, servers.pids.values())
        first.kill()
        assert still_running([first]) == []
        time.sleep(0.5)
        assert all(process.is_running() for process in others)


def test_servers_that_do_not_start_raise(serve, monkeypatch):
    monkeypatch.setenv("DYING_SERVER", "worker:0")
    with (
        pytest.raises(launch.LaunchError, match="worker:0.* exited with status 7"),
        serve(),
    ):
        pytest.fail("the context was entered")


@pytest.mark.parametrize("counts", [(-1, 2), (1, -1), ("2", 1), (1, 1.5), (True, 1)])
def test_counts_that_are_none_are_named(counts):
    with pytest.raises(ClusterError, match="a whole number from 0; received"):
        launch.local_cluster(*counts)


def test_port_that_somebody_took_is_named_with_its_taker(tmp_path, capfd, monkeypatch):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        free, *_ = launch.local_cluster(1, 1).worker
        cluster = launch.local_cluster(1, 1)
        cluster = type(cluster)(
            chief=cluster.chief, ps=(f"127.0.0.1:{port}",), worker=(free,)
        )
        job = launch.make_job(
            cluster,
            launch.Program("train.py"),
            log_dir=str(tmp_path),
            server=(str(PROGRAMS / "server.py"),),
        )
        assert launch.run_job(job) == 1
        errors = capfd.readouterr().err
        assert f"port {port} is taken by process {os.getpid()} (" in errors
        assert "Address already in use" in errors

        # A stranger's listener is not taken for ours.
        monkeypatch.setenv("SILENT_SERVER", "ps:0")
        assert launch.run_job(dataclasses.replace(job, startup_timeout=1.0)) == 1
        errors = capfd.readouterr().err
        assert f"ps:0 did not listen on 127.0.0.1:{port} within 1 s" in errors
        assert f"port {port} is taken by process {os.getpid()} (" in errors


@pytest.mark.cluster
def test_real_servers_are_forked_and_look_as_spawned(tmp_path):
    patient = {"startup_timeout": STARTUP_DEADLINE}
    with launch.servers(1, 1, log_dir=str(tmp_path), **patient) as servers:
        assert [*servers.pids] == ["ps:0", "worker:0"]
        for name, pid in servers.pids.items():
            process = psutil.Process(pid)
            assert process.cmdline() == [sys.executable, "-m", "tfdist.server"]
            config = json.loads(process.environ()["TF_CONFIG"])
            assert config["task"]["type"] in name
            assert os.getsid(pid) == pid
        [supervisor] = {psutil.Process(pid).ppid() for pid in servers.pids.values()}
        family = psutil.Process(supervisor).children()
        assert {*servers.pids.values()} < {child.pid for child in family}
        os.kill(supervisor, signal.SIGKILL)
        assert still_running(family) == []
    log = (tmp_path / "fork-server.log").read_text()
    assert re.findall(r"launch: (.*)", log) == [
        f"{name} is process {pid}, forked" for name, pid in servers.pids.items()
    ]


def test_a_fork_server_that_is_late_is_not_waited_for(serve_late, tmp_path):
    with serve_late as servers:
        assert [*servers.pids] == ["ps:0", "worker:0"]
        family = [psutil.Process(pid) for pid in servers.pids.values()]
        assert all(
            process.cmdline()[1:] == ["-m", "tfdist.server"] for process in family
        )
    log = (tmp_path / "fork-server.log").read_text()
    late = "is spawned, not forked: the fork server was not ready in time"
    assert [line for line in log.splitlines() if line.startswith("launch: ")] == [
        f"launch: {name} {late}" for name in ("ps:0", "worker:0")
    ]


def test_a_program_that_outlives_its_servers_ends_quietly(run_python):
    """TensorFlow logs an error for each function that it cannot delete on a server."""
    ran = run_python(
        """
import os
import launch

with launch.servers(num_ps=1, num_workers=1) as servers:
    os.environ["TF_CONFIG"] = servers.tf_config.to_json()
    import keras, numpy, tfdist

    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(numpy.zeros((8, 1)), numpy.zeros((8, 1)), verbose=0)
        """
    )
    assert ran.returncode == 0, ran.stderr
    assert "Failed to remove function" not in ran.stderr
