"""A script that trains an Estimator is run by every task, unasked."""

import importlib

import pytest

import tfdist
from launch.flags import command_line
from launch.job.plan import PlanError, Program, plan
from launch.job.script_source import (
    DEFAULT_PS,
    STRATEGIES_OF_CHIEF,
    STRATEGIES_OF_WORKERS,
    STRATEGIES_WITH_PS,
    STRATEGY_OF_CLUSTER,
    kind_of_script,
    num_ps_of,
    op_libraries,
)
from tf_config import Cluster, contract
from tf_config.commands import starting


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("from tfdist import estimator", "every_task"),
        ("from tfdist import GreedyLoadBalancing, estimator as tfe", "every_task"),
        ("import tfdist.estimator as estimator", "every_task"),
        ("from tfdist.estimator import RunConfig", "every_task"),
        ("from tfdist.estimator.export import PredictOutput", "every_task"),
        ("def main():\n    from tfdist import estimator", "every_task"),
        ("import tfdist.estimators", "auto"),
        ("from . import estimator", "auto"),
        ("# from tfdist import estimator", "auto"),
        ("print('from tfdist import estimator')", "auto"),
        ("this is no Python", "auto"),
        ("\0", "auto"),
    ],
)
def test_estimators_are_known_by_their_import(text, kind, tmp_path):
    script = tmp_path / "train.py"
    assert kind_of_script(Program(str(script))) == "auto"  # It is not there.
    script.write_text(f"import os\n{text}\n")
    assert kind_of_script(Program(str(script))) == kind
    assert kind_of_script(Program(str(script)), "coordinator") == "coordinator"


@pytest.mark.parametrize(
    ("lines", "num_ps", "kind"),
    [
        ("import tfdist\ns = tfdist.ParameterServerStrategy()", DEFAULT_PS, "auto"),
        ("import tfdist\ns = tfdist.MultiWorkerMirroredStrategy()", 0, "auto"),
        ("import tfdist\ns = tfdist.strategy()", DEFAULT_PS, "auto"),
        ("from tfdist import strategy\ns = strategy()", DEFAULT_PS, "auto"),
        ("import tfdist\n[tfdist.strategy, tfdist.RingStrategy]", DEFAULT_PS, "auto"),
        ("import tfdist as td\ns = td.LocalUpdateStrategy()", 0, "auto"),
        ("from tfdist import RingStrategy as Ring\ns = Ring()", 0, "coordinator"),
        ("def f():\n    import tfdist\n    tfdist.RingStrategy()", 0, "coordinator"),
        ("import tfdist.research as r\nr.PipelineStrategy(2)", 0, "coordinator"),
        ("from tfdist.research import PipelineStrategy", 0, "coordinator"),
        ("import tfdist\ntfdist.research.PipelineStrategy(2)", 0, "coordinator"),
        ("import tfdist\n[tfdist.RingStrategy, tfdist.LocalUpdateStrategy]", 0, "auto"),
        ("import tf\ntf.distribute.MultiWorkerMirroredStrategy()", DEFAULT_PS, "auto"),
        ("from tfdist import RingStrategy, strategy", DEFAULT_PS, "auto"),
        ("from tfdist import estimator, RingStrategy", DEFAULT_PS, "every_task"),
        ("not python", DEFAULT_PS, "auto"),
    ],
)
def test_the_strategy_of_a_script_says_how_to_start_it(lines, num_ps, kind, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"{lines}\n")
    program = Program(str(script))
    found, chosen = num_ps_of(program)
    assert (found, kind_of_script(program)) == (num_ps, kind)
    if chosen:
        assert chosen.startswith(f"{script} uses ")
        assert f"--num_ps={num_ps}" in chosen
        assert ("--program=coordinator" in chosen) == (kind == "coordinator")
    # What was asked for is not said to be chosen.
    assert "--program" not in num_ps_of(program, "every_task")[1]
    assert num_ps_of(program, "every_task")[0] == num_ps


def test_a_script_of_any_cluster_is_said_to_be_one(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import tfdist\nwith tfdist.strategy().scope():\n    pass\n")
    found, chosen = num_ps_of(Program(str(script)))
    assert chosen == (
        f"{script} uses tfdist.strategy(), which fits any cluster: --num_ps={found}"
    )
    assert callable(getattr(tfdist, STRATEGY_OF_CLUSTER))


def test_the_strategies_that_the_launcher_knows_exist():
    known = {*STRATEGIES_WITH_PS, *STRATEGIES_OF_CHIEF, *STRATEGIES_OF_WORKERS}
    strategies = {
        name
        for package in (tfdist, tfdist.research)
        for name in package.__all__
        if name.endswith("Strategy")
    }
    assert strategies == known


def test_modules_beside_the_script_are_looked_into(tmp_path, monkeypatch):
    (tmp_path / "trainer").mkdir()
    files = {
        "main.py": "import flags_of\nfrom trainer import task\n",
        "flags_of.py": "import main, flags_of",  # In a circle.
        "trainer/task.py": "from trainer.model import build\n",
        "trainer/model.py": "from tfdist import estimator\n",
        "other.py": "import flags_of_another, json\nfrom trainer import absent\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert kind_of_script(Program(str(tmp_path / "main.py"))) == "every_task"
    assert kind_of_script(Program(str(tmp_path / "flags_of.py"))) == "every_task"
    monkeypatch.chdir(tmp_path)
    assert kind_of_script(Program("main.py")) == "every_task"
    assert kind_of_script(Program(str(tmp_path / "other.py"))) == "auto"


def test_a_module_is_looked_into_with_what_it_imports(tmp_path, monkeypatch):
    (tmp_path / "some_trainer" / "inner").mkdir(parents=True)
    files = {
        "some_trainer/__init__.py": "",
        "some_trainer/task.py": "from . import model\n",
        "some_trainer/model.py": "import some_flags\n",
        "some_trainer/plain.py": "import json\n",
        "some_trainer/__main__.py": "from some_trainer.plain import f\n",
        "some_trainer/inner/__init__.py": "from tfdist import estimator\n",
        "some_trainer/inner/task.py": "",
        "some_flags.py": "from tfdist import estimator\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    kinds = {
        "some_trainer.task": "every_task",
        "some_trainer.inner.task": "every_task",
        "some_flags": "every_task",
        "some_trainer": "auto",
        "some_trainer.plain": "auto",
        "some_trainer.absent": "auto",
        "absent": "auto",
        "": "auto",
        ".": "auto",
    }
    found = {each: kind_of_script(Program(each, is_module=True)) for each in kinds}
    assert found == kinds


def test_beside_an_installed_package_only_itself_is_looked_into(tmp_path, monkeypatch):
    place = tmp_path / "site-packages"
    (place / "some_package").mkdir(parents=True)
    (place / "some_package" / "train.py").write_text("import some_library\n")
    (place / "some_library.py").write_text("from tfdist import estimator\n")
    monkeypatch.syspath_prepend(place)
    program = Program("some_package.train", is_module=True)
    assert kind_of_script(program) == "auto"


OBJECT = b"\x7fELF... libtensorflow_framework.so.2 ..."


def install(directory, name, module, requires=(), content=b""):
    """Installs a distribution that has one module with one shared object."""
    (directory / module).mkdir()
    (directory / module / "__init__.py").touch()
    (directory / module / "_ops.so").write_bytes(content)
    info = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", *(f"Requires-Dist: {each}" for each in requires)]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, "", ""]))
    (info / "RECORD").write_text(f"{module}/__init__.py,,\n{module}/_ops.so,,\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import some_text as text", ["some_text"]),
        ("from some_text.core import split", ["some_text"]),
        ("import some_hub", ["some_text"]),  # It requires the library, and imports it.
        ("import fast_arrays, some_models, os, absent, tensorflow", []),
        ("", []),
    ],
)
def test_a_library_of_operations_is_known_by_what_it_is_linked_with(
    source, expected, tmp_path, monkeypatch
):
    site, script = tmp_path / "site", tmp_path / "train.py"
    site.mkdir()
    install(site, "some-text", "some_text", ["tensorflow<3,>=2"], OBJECT)
    install(site, "some-hub", "some_hub", ["numpy", "some-text; os_name != 'nt'"])
    install(site, "some-models", "some_models", ["tensorflow>=2"], b"\x7fELF libc")
    install(site, "fast-arrays", "fast_arrays", ["numpy"], OBJECT)
    monkeypatch.syspath_prepend(site)
    script.write_text(source)
    assert op_libraries(Program(str(script))) == expected


@pytest.mark.parametrize("name", sorted({*STRATEGIES_OF_WORKERS, STRATEGY_OF_CLUSTER}))
def test_a_chief_does_not_wait_for_servers_that_never_take_part(name, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"import tfdist\ntfdist.{name}()\n")
    with pytest.raises(PlanError, match=f"every_task for tfdist.{name} of .*: omit it"):
        kind_of_script(Program(str(script)), "coordinator", 0)
    script.write_text(f"import tfdist\ntfdist.{name}, tfdist.RingStrategy\n")
    assert kind_of_script(Program(str(script)), "coordinator", 0) == "coordinator"


def test_a_strategy_of_any_cluster_runs_on_the_chief_with_ps(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import tfdist\ntfdist.strategy()\n")
    for num_ps in (1, None):
        kind = kind_of_script(Program(str(script)), "coordinator", num_ps)
        assert kind == "coordinator"


PS = ("chief", "ps", "worker")


HOSTS = "--hosts=a,b --env=KEY=..."
ADDRESSES = (
    "--job_name=worker --chief_hosts=HOST:PORT --ps_hosts=HOST:PORT "
    "--worker_hosts=a:1,b:1 T"
)
TWO = "--num_ps=2 --num_workers=2"


@pytest.mark.parametrize(
    ("command", "typed", "retyped"),
    [
        ("local", "--num_ps=0 T --x", f"{TWO} T --x"),
        ("local", "--chief -m p.t", f"{TWO} -m p.t"),
        ("ssh", "--num-ps 0 --name=a --hosts=a,b --env=KEY=1 T", f"{HOSTS} {TWO} T"),
        ("slurm", "--mem=2G T", f"--mem=2G {TWO} T"),
        ("kubernetes", "--image=i --program=every_task T", f"--image=i {TWO} T"),
        ("ray", "--detach T", f"--detach {TWO} T"),
        ("task", "--job_name=worker --worker_hosts=a:1,b:1 T", ADDRESSES),
        ("task", "--first_port=9 T", f"--first_port=9 {TWO} T"),
    ],
)
def test_a_program_knows_how_to_start_it_on_another_cluster(
    command, typed, retyped, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "T").touch()
    module = importlib.import_module(f"launch.{command}")
    values = (getattr(module, "define_flags", None) or module._define_flags)()
    _, program = command_line.parse([f"tfdist {command}", *typed.split()], values, "")
    cluster = Cluster(worker=("a:1", "b:1"))
    (first, _) = plan(cluster, program)
    found = starting(first.env[contract.COMMAND], [], PS, cluster.as_dict())
    assert found == f"tfdist {command} {retyped}"
    assert contract.COMMAND not in first.shell_line()  # It starts nothing.


def test_a_server_does_not_know_how_it_was_started():
    cluster = Cluster(chief=("c:1",), ps=("a:1",), worker=("b:1",))
    plans = plan(cluster, Program("T", command="[]"))
    assert [each.name for each in plans if "[]" in each.env.values()] == ["chief"]
