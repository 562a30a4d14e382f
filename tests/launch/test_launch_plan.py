import os
import pickle
import shlex
import string
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import launch
from launch.job.job import Job
from launch.job.plan import PlanError, Program, TaskPlan, plan, resolve_kind
from launch.loopback import cluster, foreground
from tf_config import Cluster, Task, TFConfig

PS_CLUSTER = Cluster.from_hosts(
    chief="a:1", ps="b:1,b:2", worker="c:1", evaluator="d:1"
)
WORKERS = Cluster.from_hosts(worker="a:1,b:1")
PROGRAM = Program("train.py", ("--epochs=5", "--num_ps=9"))

texts = st.text(string.printable, max_size=10)


def test_coordinator_program_runs_the_script_on_chief_and_evaluator_only():
    plans = plan(PS_CLUSTER, PROGRAM, python="py")
    script = ("py", "train.py", "--epochs=5", "--num_ps=9")
    server = ("py", "-m", "tfdist.server")
    assert [(each.name, each.argv, each.is_server) for each in plans] == [
        ("chief", script, False),
        ("ps:0", server, True),
        ("ps:1", server, True),
        ("worker:0", server, True),
        ("evaluator", script, False),
    ]


def test_program_without_parameter_servers_runs_the_script_everywhere():
    plans = plan(WORKERS, PROGRAM)
    assert [each.argv[1] for each in plans] == ["train.py", "train.py"]
    assert not any(each.is_server for each in plans)


def test_flag_overrides_what_the_cluster_suggests():
    plans = plan(PS_CLUSTER, PROGRAM, "every_task")
    assert {each.argv[1] for each in plans} == {"train.py"}


def test_each_task_gets_its_own_tf_config_and_nothing_else():
    for each in plan(PS_CLUSTER, PROGRAM):
        assert each.address == PS_CLUSTER.address(each.task)
        assert list(each.env) == ["TF_CONFIG"]
        assert each.env["TF_CONFIG"] == TFConfig(PS_CLUSTER, each.task).to_json()


def test_servers_are_told_which_modules_to_import():
    program = Program("train.py", imports=("tensorflow_text", "ops"))
    told = {e.name: e.env.get("TFDIST_IMPORTS") for e in plan(PS_CLUSTER, program)}
    server = "tensorflow_text,ops"
    both = dict.fromkeys(("ps:0", "ps:1", "worker:0"), server)
    assert told == {"chief": None, **both, "evaluator": None}


def test_unknown_kind_is_refused_with_the_kinds():
    with pytest.raises(
        PlanError, match="'all'; choose one of auto, coordinator, every"
    ):
        resolve_kind(WORKERS, "all")


def test_coordinator_program_needs_no_parameter_servers():
    cluster = Cluster(chief=("a:1",), worker=("b:1", "c:1"))
    chief, *workers = plan(cluster, PROGRAM, "coordinator")
    assert not chief.is_server
    assert [worker.is_server for worker in workers] == [True, True]
    assert not any(each.is_server for each in plan(cluster, PROGRAM))


@given(argv=st.lists(texts, min_size=1), value=texts)
def test_shell_line_says_the_command_and_the_environment(argv, value):
    line = TaskPlan(Task("ps", 0), "a:1", tuple(argv), {"NAME": value}).shell_line()
    assert shlex.split(line) == [f"NAME={value}", *argv]


@given(flags=st.lists(st.text(max_size=10)), timeout=st.floats(0.1, 1e6))
def test_job_survives_its_journey_to_the_supervisor(flags, timeout):
    program = Program("train.py", tuple(flags))
    job = Job("coordinator", plan(PS_CLUSTER, program), "logs", startup_timeout=timeout)
    assert pickle.loads(pickle.dumps(job)) == job


def test_the_logs_of_the_newest_runs_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "_KEPT_RUNS", 3)
    gone = 2**22 + 1  # More than Linux has.
    runs = [f"2026010{day}-000000-000000" for day in range(1, 9)]
    names = [f"{run}-{gone}" for run in runs]
    names[0] = f"{runs[0]}-{os.getpid()}"
    for name in [*names, "fit", "20260101"]:
        path = Path("logs", name)
        path.mkdir(parents=True)
        (path / "chief.log").touch()
        for each in (path / "chief.log", path):
            if name != names[1]:  # It may run on another machine.
                os.utime(each, (0, 0))
    cluster.make_log_dir("logs/mine")
    assert len(os.listdir("logs")) == 11
    new = cluster.new_log_dir()
    cluster.make_log_dir(new)
    kept = {"mine", "fit", "20260101", *names[:2], *names[-2:], os.path.basename(new)}
    assert {*os.listdir("logs")} == kept


def test_a_run_that_started_nothing_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handle = mock.MagicMock()
    handle.return_value.wait.return_value = 2
    handle.return_value.next_event.return_value = {}
    monkeypatch.setattr(foreground, "Handle", handle)
    monkeypatch.setattr(foreground, "processes", mock.MagicMock())
    monkeypatch.setattr(foreground.signal, "signal", lambda *_: None)
    new, used = f"{cluster.new_log_dir()}0", cluster.new_log_dir()
    Path(used).mkdir(parents=True)
    Path(used, "chief.log").touch()
    for log_dir in (new, used, "mine"):
        job = mock.MagicMock(log_dir=log_dir, grace_period=1.0)
        assert foreground.run(job) == 2
    assert {*os.listdir("logs"), "mine"} == {os.path.basename(used), "mine"}
    assert os.path.isdir("mine")


def test_local_job_leaves_alone_what_the_user_has_set():
    def env_of(name, environ):
        cluster = Cluster.from_hosts(chief="a:1", ps="a:2", worker="a:3")
        job = launch.make_job(cluster, PROGRAM, environ=environ)
        return next(dict(each.env) for each in job.plans if each.name == name)

    chosen = {
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "false",
        "PYTHONUNBUFFERED": "",
    }
    assert list(env_of("worker:0", chosen)) == ["TF_CONFIG"]
    assert env_of("worker:0", {})["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert "TF_CPP_MIN_LOG_LEVEL" not in env_of("chief", {})
    assert env_of("ps:0", {})["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "CUDA_VISIBLE_DEVICES" not in env_of("worker:0", {})
