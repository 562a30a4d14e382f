"""Which tasks are forked: pure decisions."""

import sys
from dataclasses import replace

import pytest

import launch
from launch import forking
from launch.plan import PlanError, Program, plan
from launch.too_late import too_late
from tf_config import Cluster

CLUSTER = Cluster.from_hosts(chief="a:1", ps="a:2", worker="a:3,a:4")
WORKERS = Cluster.from_hosts(worker="a:3,a:4")
ENVIRON = {"HOME": "/root", "OMP_NUM_THREADS": "2"}


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("launch.gpus.available", lambda environ: ())


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


@pytest.mark.parametrize(
    ("code", "is_worthwhile"),
    [
        ("import tensorflow as tf", True),
        ("from keras.layers import Dense", True),
        ("import tfdist", True),
        ("import helper", True),
        ("import tensorflow_datasets, os", False),
        ("print('tensorflow')", False),
    ],
)
def test_scripts_without_tensorflow_are_not_worth_it(tmp_path, code, is_worthwhile):
    (tmp_path / "helper.py").write_text("import keras")
    script = tmp_path / "train.py"
    script.write_text(code)
    plans = plan(WORKERS, Program(str(script)))
    assert forking.is_worthwhile(plans) == is_worthwhile
    assert not forking.is_worthwhile(plans[:1])


def test_servers_are_worth_it_whatever_the_script_imports():
    assert forking.is_worthwhile(plan(CLUSTER, Program("train.py")))
    others = plan(CLUSTER, Program("train.py"), server=("server.py",))
    assert not forking.is_worthwhile(others)


def test_the_mode_decides_before_the_scripts_do():
    tensorflow, other = (
        plan(CLUSTER, Program("train.py"), server=server)
        for server in (("-m", "tfdist.server"), ("server.py",))
    )
    wanted = [
        [forking.is_wanted(mode, plans) for plans in (tensorflow, other)]
        for mode in forking.MODES
    ]
    assert wanted == [[True, False], [True, True], [False, False]]


def test_an_unknown_mode_is_refused():
    with pytest.raises(PlanError, match="unknown fork_server 'yes'; .* auto, on, off"):
        replace(job(ENVIRON), fork_server="yes")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("code", "variable"),
    [
        ("os.environ['KERAS_BACKEND'] = 'jax'", "KERAS_BACKEND"),
        ("os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')", "TF_CPP_MIN_LOG_LEVEL"),
        ("os.environ.update({'A': '1', 'OMP_NUM_THREADS': '1'})", "OMP_NUM_THREADS"),
        ("os.environ.update(TF_XLA_FLAGS='')", "TF_XLA_FLAGS"),
        ("os.environ.pop('OMP_NUM_THREADS', None)", "OMP_NUM_THREADS"),
        ("del os.environ['XLA_FLAGS']", "XLA_FLAGS"),
        ("os.putenv('MPLBACKEND', 'agg')", "MPLBACKEND"),
        ("NAME = 'GRPC_VERBOSITY'\nos.environ[NAME] = '1'", "GRPC_VERBOSITY"),
        ("import settings_beside", "KERAS_HOME"),
        ("print(os.environ.get('KERAS_BACKEND'), os.getenv('XLA_FLAGS'))", ""),
        ("print(os.environ['KERAS_BACKEND'])", ""),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['TF_CONFIG'] = ''", ""),
        ("os.environ['MY_OWN'] = 'TF_ and more'", ""),
        ("'PYTHON is fun'", ""),
        ("os.environ['HOME'] = '/tmp'", "HOME"),
        ("os.environ['TMPDIR'] = '/scratch'", "TMPDIR"),
        ("print(os.environ['HOME'], os.environ.get('TMPDIR'))", ""),
        ("import package_beside.inner", "KERAS_HOME"),
        (
            "find_spec('tensorflow')\nos.environ['KERAS_BACKEND'] = 'jax'",
            "KERAS_BACKEND",
        ),
        ("this is no Python: 'KERAS_BACKEND'", ""),
    ],
)
def test_a_script_that_sets_what_an_import_reads_is_spawned(tmp_path, code, variable):
    (tmp_path / "settings_beside.py").write_text("os.environ['KERAS_HOME'] = '.'")
    package = tmp_path / "package_beside"
    package.mkdir()
    (package / "__init__.py").write_text("from .settings import nothing")
    (package / "settings.py").write_text("os.environ['KERAS_HOME'] = '.'")
    script = tmp_path / "train.py"
    script.write_text(code)
    found = reasons(job(ENVIRON, script=str(script)).plans)
    assert found.pop("chief") == (variable and f"its script may set {variable}")
    assert set(found.values()) == {""}


@pytest.mark.parametrize(
    ("code", "late"),
    [
        ("sys.path.insert(0, 'lib')", "change sys.path"),
        ("sys.path[:0] = ['lib']", "change sys.path"),
        ("sys.path = ['lib', *sys.path]", "change sys.path"),
        ("from sys import path\npath.insert(0, 'lib')", "change sys.path"),
        ("del sys.path[0]", "change sys.path"),
        ("sys.modules['pandas'] = None", "change sys.modules"),
        ("sys.meta_path.insert(0, Mine())", "change sys.meta_path"),
        ("sys.path.append('lib')", ""),
        ("sys.path += ['lib']", "change sys.path"),
        ("print(sys.path, sys.path[0], 'a' in sys.modules, sys.modules[__name__])", ""),
        ("sys.modules.get('pandas'), os.path.join('a', 'b'), sys.argv[0]", ""),
        ("for k, v in settings: os.environ[k] = v", "set any environment variable"),
        ("os.environ['KERAS' + '_HOME'] = ''", "set any environment variable"),
        ("os.environ.update(settings)", "set any environment variable"),
        ("os.environ.update(**settings)", "set any environment variable"),
        ("os.environ.update({**settings})", "set any environment variable"),
        ("os.environ.clear()", "set any environment variable"),
        ("from os import putenv\nputenv(name, '')", "set any environment variable"),
        ("os.environ.update({'A': a}, B=b); os.environ.pop('A', None)", ""),
        ("settings.update(others); others.pop(name); mine[name] = 1", ""),
        (
            "from dotenv import load_dotenv\nload_dotenv()",
            "set any environment variable",
        ),
        ("import dotenv\ndotenv.load_dotenv('.env')", "set any environment variable"),
        (
            "from dotenv import load_dotenv as load\nload()",
            "set any environment variable",
        ),
        ("env = environs.Env()\nenv.read_env()", "set any environment variable"),
        ("from dotenv import dotenv_values\nsettings = dotenv_values()", ""),
    ],
)
def test_what_comes_too_late_in_a_fork_is_read_from_the_source(tmp_path, code, late):
    script = tmp_path / "train.py"
    script.write_text(code)
    assert too_late(Program(str(script))) == late
