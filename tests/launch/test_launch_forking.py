"""Which tasks are forked: pure decisions."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import launch
from launch.job import forking
from launch.job.plan import PlanError, Program, plan
from tf_config import Cluster

TESTS = Path(__file__).parents[1]
PROGRAMS = [*TESTS.glob("*/*_cases.py"), TESTS / "estimator" / "estimator_witness.py"]

CLUSTER = Cluster.from_hosts(chief="a:1", ps="a:2", worker="a:3,a:4")
ENVIRON = {"HOME": "/root", "OMP_NUM_THREADS": "2"}


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("launch.job.gpus.available", lambda environ: ())


def job(environ, cluster=CLUSTER, script="train.py"):
    return launch.make_job(cluster, Program(script), environ=environ)


def reasons(plans, environ=ENVIRON):
    server = forking.environment(plans, environ)
    return {
        each.name: forking.why_not(each, {**environ, **each.env}, server)
        for each in plans
    }


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("level", [{}, {"TF_CPP_MIN_LOG_LEVEL": "0"}])
def test_every_task_of_a_job_is_forked(level):
    assert set(reasons(job({**ENVIRON, **level}).plans).values()) == {""}


@pytest.mark.usefixtures("no_gpu")
def test_a_task_that_imports_in_another_way_is_spawned():
    first, second, *rest = job(ENVIRON).plans
    found = reasons(
        [
            replace(first, argv=("/usr/bin/python3", *first.argv[1:])),
            replace(second, env={**second.env, "KERAS_BACKEND": "jax"}),
            *rest,
        ]
    )
    assert found == {
        "chief": f"its interpreter is /usr/bin/python3, not {sys.executable}",
        "ps:0": "it has its own KERAS_BACKEND",
        "worker:0": "",
        "worker:1": "",
    }


def test_a_task_that_sees_a_gpu_is_spawned(monkeypatch):
    environ = {**ENVIRON, "CUDA_VISIBLE_DEVICES": "0,1"}
    found = reasons(job(environ).plans, environ)
    assert found.pop("ps:0") == ""  # It is told to see none.
    assert set(found.values()) == {"it sees GPU 0, 1"}


@pytest.mark.usefixtures("no_gpu")
def test_a_script_with_a_log_level_of_its_own_is_spawned():
    chief, *servers = job(ENVIRON).plans
    chief = replace(chief, env={**chief.env, "TF_CPP_MIN_LOG_LEVEL": "3"})
    environment = forking.environment(servers, ENVIRON)
    assert "TF_CPP_MIN_LOG_LEVEL" in forking.why_not(
        chief, {**ENVIRON, **chief.env}, environment
    )


def test_the_fork_server_has_what_all_tasks_have_and_no_task_of_its_own():
    plans = job({**ENVIRON, "TF_CONFIG": "of another cluster"}).plans
    environ = {**ENVIRON, "TF_CONFIG": "of another cluster"}
    assert forking.environment(plans, environ) == {**ENVIRON, "PYTHONUNBUFFERED": "1"}


def test_the_mode_says_for_how_many_tasks_it_is_worth_it():
    plans = plan(CLUSTER, Program("train.py"))
    wanted = [
        [forking.is_wanted(mode, plans[:number]) for number in (0, 1, 2)]
        for mode in forking.MODES
    ]
    assert wanted == [[False, False, True], [False, True, True], [False] * 3]


@pytest.mark.usefixtures("no_gpu")
def test_a_server_of_another_program_is_spawned():
    plans = plan(CLUSTER, Program("train.py"), server=("server.py",))
    found = reasons(plans)
    assert found.pop("chief") == ""
    assert set(found.values()) == {"its server is another program"}


def test_an_unknown_mode_is_refused():
    with pytest.raises(PlanError):
        replace(job(ENVIRON), fork_server="yes")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("code", "late"),
    [
        ("os.environ['KERAS_BACKEND'] = 'jax'", "environ['KERAS_BACKEND']"),
        ("os.environ['A'] = os.environ['B'] = ''", "environ['A'] = os.environ['B']"),
        ("os.environ.setdefault('TF_X', '1')", "environ.setdefault"),
        ("os.environ.update(settings)", "environ.update"),
        ("os.environ |= settings", "environ |"),
        ("os.environ['A']='b'", "environ['A']"),
        ("for k, v in settings: os.environ[k[0]] = v", "environ[k[0]]"),
        ("os.environ.pop('OMP_NUM_THREADS', None)", "environ.pop"),
        ("os.environ.clear()", "environ.clear"),
        ("os.environ['OMP_X'] += '1'", "environ['OMP_X'] +"),
        ("env = os.environ\nenv['KERAS_BACKEND'] = 'jax'", "os.environ"),
        ("from os import environ as env\nenv['A'] = 'b'", "environ as"),
        ("if os.environ['A'] == 'b': print(dict(os.environ))", ""),
        ("del os.environ['XLA_FLAGS']", "del os.environ"),
        ("long = " + " + ".join("a" * 500) + "; os.environ.clear()", "environ.clear"),
        ("from os import putenv\nputenv(name, '')", "putenv"),
        ("import dotenv\ndotenv.load_dotenv('.env')", "load_dotenv"),
        ("from dotenv import load_dotenv as load\nload()", "load_dotenv"),
        ("env = environs.Env()\nenv.read_env()", "read_env"),
        ("sys.path.insert(0, 'lib')", "sys.path"),
        ("sys.path[:0] = ['lib']", "sys.path"),
        ("from sys import path\npath.insert(0, 'lib')", "from sys import"),
        ("sys.modules['pandas'] = None", "sys.modules"),
        ("sys.meta_path.insert(0, Mine())", "sys.meta_path"),
        ("import settings_beside", "environ['KERAS_HOME']"),
        ("import package_beside.inner", "environ['KERAS_HOME']"),
        ("print(os.environ['HOME'], os.environ.get('TF_CONFIG'))", ""),
        ("settings.update(others); others.pop(name); mine[name] = 1", ""),
        ("print(os.path.join('a', 'b'), sys.argv[0])", ""),
        ("this is no Python: os.environ['A'] = 1", ""),
    ],
)
def test_a_script_that_may_come_too_late_is_spawned(tmp_path, code, late):
    (tmp_path / "settings_beside.py").write_text("os.environ['KERAS_HOME'] = '.'")
    package = tmp_path / "package_beside"
    package.mkdir()
    (package / "__init__.py").write_text("from .settings import nothing")
    (package / "settings.py").write_text("os.environ['KERAS_HOME'] = '.'")
    script = tmp_path / "train.py"
    script.write_text(code)
    found = reasons(job(ENVIRON, script=str(script)).plans)
    expected = late and f"its script has {late}, which may come too late"
    assert found.pop("chief") == expected
    assert set(found.values()) == {""}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_tasks_of_tests_share_one_import_of_tensorflow(program):
    assert forking.too_late(Program.of([str(program)])) == ""
