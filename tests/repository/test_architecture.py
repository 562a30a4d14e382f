"""The arrows of the design, the fence around private symbols, the public names."""

import ast
import importlib.util
import itertools
import json
import os
import re
import sys
from pathlib import Path

import pytest

from ..support import jobs
from .test_architecture_graph import ROOTS

PRIVATE = (
    "tensorflow.python",
    "tensorflow.compiler",
    "keras.src",
    "tf_keras",
    "tensorflow_estimator",
)
FENCES = {
    "_tf": ("tensorflow.python", "keras.src"),
    # `import tfdist` must not need tensorflow-estimator, nor import what it does.
    "estimator/_tf.py": ("tensorflow.python.distribute", "tf_keras"),
}


def modules(package: str) -> list[Path]:
    return sorted(ROOTS[package].rglob("*.py"))


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
    return names


def tops(package: str) -> set[str]:
    found = {name.split(".")[0] for path in modules(package) for name in imports(path)}
    return found - {package}


def test_tf_config_imports_the_standard_library_alone():
    assert tops("tf_config") <= sys.stdlib_module_names


def test_launch_imports_neither_tensorflow_nor_tfdist():
    assert tops("launch") & {"tensorflow", "keras", "tfdist"} == set()
    assert "tf_config" in tops("launch")


def test_tfdist_does_not_import_launch():
    assert "launch" not in tops("tfdist")
    assert "tf_config" in tops("tfdist")


def fence_of(path: Path) -> str:
    """The package of the fence, or the file."""
    return path.parts[0] if path.parts[0] in FENCES else path.as_posix()


def test_private_symbols_stand_behind_the_fence():
    breaches = {
        (fence_of(path.relative_to(ROOTS[package])), name)
        for package in ROOTS
        for path in modules(package)
        for name in imports(path)
        if name.startswith(PRIVATE)
    }
    assert {path for path, _ in breaches} == set(FENCES)
    for path, name in breaches:
        assert name.startswith(FENCES[path]), (path, name)


def test_the_estimator_is_imported_by_itself_alone():
    importers = {
        path.relative_to(ROOTS["tfdist"]).parts[0]
        for path in modules("tfdist")
        for name in imports(path)
        if name.startswith("tfdist.estimator")
    }
    assert importers == {"estimator"}


def run(program: str, **env: str) -> str:
    return jobs.run("-c", program, TF_CPP_MIN_LOG_LEVEL="3", **env).stdout


def test_importing_tfdist_patches_nothing():
    program = """
import json, os
import keras, tensorflow as tf
from keras.src.backend.tensorflow import core, trainer

def methods():
    return {
        f"{owner.__name__}.{name}": id(value)
        for owner in (
            core.Variable, trainer.TensorFlowTrainer, trainer.TFEpochIterator,
            keras.Model, keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric,
            tf.Variable, tf.data.Dataset, tf.distribute.Strategy,
            tf.distribute.ParameterServerStrategy,
        )
        for name, value in vars(owner).items()
    }

def outside():
    return dict(os.environ), tf.config.list_logical_devices()

before = methods(), outside()
import tfdist
[getattr(tfdist, name) for name in tfdist.__all__]
after = methods(), outside()
print(json.dumps([before[0] == after[0], before[1] == after[1], len(before[0])]))
"""
    same_methods, same_outside, count = json.loads(run(program))
    assert same_methods
    assert same_outside
    assert count > 200


def test_launch_starts_without_tensorflow():
    program = """
import sys
import launch, launch.chaos, launch.local, launch.task, launch.supervise.supervisor, tf_config
import launch.doctor, launch.diagnose.peer, launch.diagnose.probe
print({"tensorflow", "keras", "numpy"} & set(sys.modules))
"""
    assert run(program).strip() == "set()"


@pytest.mark.parametrize("package", sorted(ROOTS))
def test_every_module_is_annotated_as_typed(package):
    assert (ROOTS[package] / "py.typed").exists()


def rows(heading: str) -> list[list[str]]:
    """The rows of the changelog's table that has these columns."""
    page = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    table = page.partition(f"| {heading} |\n")[2].splitlines()[1:]
    lines = itertools.takewhile(str.strip, table)
    return [line.strip("| ").split(" | ") for line in lines]


MOVED = rows("package | module before | module now")


def test_the_changelog_has_its_table():
    assert len(MOVED) == 2


@pytest.mark.parametrize(("package", "before", "now"), MOVED)
def test_the_changelog_says_what_moved(package, before, now):
    assert all(importlib.util.find_spec(name) for name in re.findall(r"`(.+?)`", now))
    for file in before.split(", "):
        name = f"{package.strip('`')}.{file.removesuffix('.py').replace('/', '.')}"
        found = find_module(name)
        assert found is None or found.submodule_search_locations, name


def find_module(name):
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


@pytest.mark.skipif("TFDIST_WHEEL" not in os.environ, reason="make check sets it")
def test_the_tests_run_on_the_wheel():
    wheel = Path(os.environ["TFDIST_WHEEL"]).resolve()
    assert {root.parent.resolve() for root in ROOTS.values()} == {wheel}
