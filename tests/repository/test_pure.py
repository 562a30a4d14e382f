"""Decisions import without TensorFlow, and so does `tfdist` itself."""

import ast
import json
import re
import resource
import statistics
import sys
import types
from pathlib import Path

import pytest

import tfdist

from ..support import jobs

ROOT = Path(tfdist.__file__).parent
# Each package's modules that need neither TensorFlow nor Keras; "*": all but the others.
PURE = {
    "all_reduce": ["cost", "packing", "schedule"],
    "checkpoint": ["attributes", "plain", "store"],
    "_support": ["context", "names", "errors", "views", "wire_dtype"],
    "cluster": ["health", "settings", "startup"],
    "cluster.liveness": [
        "activity",
        "sentinel",
        "stall",
        "supervision",
        "watchdog",
    ],
    "data": ["*", "auto_leases", "leased", "record_places", "sources"],
    "embedding": ["cost"],
    "embedding.growing": ["admission", "chain", "eviction", "pieces"],
    "research.federated": ["*"],
    "research.federated.flower": ["array_layout", "client_numbers"],
    "graph": ["draws", "functions"],
    "local_update": [
        "compression",
        "exchange",
        "members",
        "message",
        "messenger",
        "mix_schedule",
        "reads",
        "rejoin",
    ],
    "low_level": ["replica_round"],
    "local_update.mixing": ["*"],
    "research.model_parallel": ["*", "estimated", "keras_graph", "measured"],
    "parameter_server.seam": ["replicas"],
    "parameter_server.exchange": ["policies", "report"],
    "parameter_server.caching": ["decision", "report"],
    "parameter_server.fit": ["pace"],
    "parameter_server.step_graph": ["messages", "unrolling"],
    "consistency": ["*"],
    "research.model_parallel.pipeline": [
        "arguments",
        "chain",
        "cut",
        "errors",
        "step_time",
    ],
    "placement": ["*"],
    "planning": ["*", "model", "recording", "sizes"],
    "research.simulation": ["*"],
    "research.model_parallel.splitting": ["split"],
    "synchronous.reader": ["reduction"],
}
WITHOUT_TENSORFLOW = """
import importlib, json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "keras", "tf_keras"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
errors = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        errors[name] = str(error)
print(json.dumps(errors))
"""


def run(*arguments: str) -> str:
    return jobs.run(*arguments, TF_CPP_MIN_LOG_LEVEL="3").stdout


def modules() -> list[str]:
    found = []
    for package, names in PURE.items():
        if names[0] == "*":
            paths = (ROOT / package.replace(".", "/")).glob("[!_]*.py")
            names = sorted({path.stem for path in paths} - {*names})
        found += [f"tfdist.{package}.{name}" for name in names]
    return found


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    """Why modules fail to import where TensorFlow and Keras cannot be."""
    return json.loads(run("-c", WITHOUT_TENSORFLOW, *modules(), "tfdist._tf"))


def test_decisions_import_without_tensorflow_and_nothing_else_does(errors):
    assert list(errors) == ["tfdist._tf"], errors
    assert "is blocked" in errors["tfdist._tf"]


def test_modules_that_say_so_are_pure():
    claim = re.compile(r"\bpure\b|imports? (no|neither) tensorflow", re.IGNORECASE)
    claiming = set()
    for path in ROOT.rglob("[!_]*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        if claim.search(docstring):
            parts = path.relative_to(ROOT).with_suffix("").parts
            claiming.add(".".join(("tfdist", *parts)))
    assert claiming <= set(modules())


def test_the_package_imports_neither_tensorflow_nor_numpy():
    program = (
        "import sys, tfdist; print({'tensorflow', 'keras', 'numpy'} & set(sys.modules))"
    )
    assert run("-c", program).strip() == "set()"


def test_public_names_of_pure_modules_need_no_tensorflow():
    pure = {name for name, module in tfdist._MODULES.items() if module in modules()}
    assert len(pure) > 20
    program = "import tfdist\nfor name in sys.argv[1:]: getattr(tfdist, name)"
    run("-c", WITHOUT_TENSORFLOW.partition("errors =")[0] + program, *pure)


def test_public_names_are_listed():
    assert set(tfdist.__all__) <= set(dir(tfdist))


def test_tools_may_reexport_each_public_name():
    """In a stub, only `import x as x` says so."""
    stub = ast.parse((ROOT / "__init__.pyi").read_text())
    imports = [each for each in stub.body if isinstance(each, ast.ImportFrom)]
    assert all(a.asname == a.name for each in imports for a in each.names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GreedyLoadBalancer", "Did you mean: GreedyLoadBalancing?"),
        ("Nonexistent", "module 'tfdist' has no attribute 'Nonexistent'"),
        ("__path_hooks__", "module 'tfdist' has no attribute '__path_hooks__'"),
    ],
)
def test_an_unknown_name_is_an_attribute_error(name, message):
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(tfdist, name)


def test_names_that_tfdist_does_not_replace_are_those_of_tensorflow(monkeypatch):
    distribute = types.SimpleNamespace(
        MirroredStrategy=object, RoundRobin=object, experimental=object
    )
    tensorflow = types.SimpleNamespace(distribute=distribute)
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    assert tfdist.MirroredStrategy is object
    assert tfdist.RoundRobin is not object
    with pytest.raises(AttributeError, match=r"own: tf\.distribute\.experimental$"):
        tfdist.experimental  # noqa: B018


def test_the_version_is_that_of_the_checkout():
    assert (
        f"\nversion = {tfdist.__version__}\n"
        in (Path(__file__).parents[2] / "setup.cfg").read_text()
    )


def test_names_on_an_old_tensorflow_say_which_one_is_needed():
    program = """
import sys, types
sys.modules["tensorflow"] = types.SimpleNamespace(__version__="2.15.1")
import tfdist
print(tfdist.RoundRobin.__name__)
try:
    tfdist.ParameterServerStrategy
except ImportError as error:
    print(error)
"""
    pure, error = run("-c", program).splitlines()
    assert pure == "RoundRobin"
    assert "tfdist needs TensorFlow 2.16 or newer; version 2.15.1" in error


def test_the_help_of_the_plan_command_takes_under_half_a_second():
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "--num_ps" in run("-m", "tfdist.plan", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Processor time: a busy machine takes longer by the clock.
    assert statistics.median(seconds() for _ in range(5)) < 0.5


def test_plan_is_a_function_once_the_module_of_that_name_is_imported():
    import importlib

    importlib.import_module("tfdist.plan")
    with pytest.raises(TypeError, match="build_model|num_ps"):
        tfdist.plan()
