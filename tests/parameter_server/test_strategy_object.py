"""A strategy as an object: copies, devices, garbage collection and graph mode."""

import importlib
import json
from types import SimpleNamespace

import pytest
import tensorflow as tf

import tfdist

from ..launch_programs.launcher import PROGRAMS
from ..support import jobs

STRATEGIES = {
    "ParameterServerStrategy": ["--num_ps=1", "--num_workers=1"],
    "MultiWorkerMirroredStrategy": ["--num_ps=0", "--num_workers=2"],
    "RingStrategy": ["--num_ps=0", "--num_workers=2", "--program=coordinator"],
}
PROCESSES = {
    "ParameterServerStrategy": {"chief-0"},
    "MultiWorkerMirroredStrategy": {"worker-0", "worker-1"},
    "RingStrategy": {"chief-0"},
}


def launch(name, directory, program, *args):
    logs = f"--log_dir={directory}/logs"
    return jobs.launch(*STRATEGIES[name], logs, PROGRAMS / program, *args).stdout


@pytest.mark.cluster
def test_what_was_made_before_the_strategy(tmp_path):
    said = launch("ParameterServerStrategy", tmp_path, "table_before_strategy.py")
    lines = [each for each in said.splitlines() if "    lost: " in each]
    names = [
        *["earlier/early_dense/kernel"] * 4,
        "early_error/total",
        *["early.lookup_table"] * 3,
    ]
    for line, name in zip(lines, names, strict=True):
        assert f"{name} was made before ParameterServerStrategy()" in line
        assert "Construct the strategy first" in line
    assert "was built outside of strategy.scope()" not in said


@pytest.mark.cluster
@pytest.mark.parametrize("name", STRATEGIES)
def test_object(tmp_path, name):
    """Copies are the strategy itself, and its threads end with it."""
    launch(name, tmp_path, "dropped_strategy.py", name, str(tmp_path))
    found = {
        path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")
    }
    assert found.keys() == PROCESSES[name]
    for each in found.values():
        assert each["copy"]
        assert each["deepcopy"]
        assert each["threads"] != []
        assert each["is_garbage"]
        assert each["threads_after"] == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_graph_mode_is_refused(name):
    words = rf"tfdist\.{name} trains in eager mode, .*Construct it outside.*low-level"
    make = getattr(tfdist, name)
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match=words):
        make()

    @tf.function
    def traced():
        make()

    with pytest.raises(RuntimeError, match=words):
        traced()


@pytest.mark.cluster
@pytest.mark.parametrize("gpus", [0, 2])
def test_accelerators_are_those_that_tensorflow_counts(strategy, monkeypatch, gpus):
    """As TensorFlow's own resolver says, of this task and of another."""
    devices = [
        SimpleNamespace(name=f"/job:{task}/device:{kind}:{i}", device_type=kind)
        for task, count in (("chief/replica:0/task:0", gpus), ("worker/task:1", 3))
        for kind, number in (("CPU", 1), ("GPU", count))
        for i in range(number)
    ]
    module = importlib.import_module("tensorflow.python.framework.config")
    monkeypatch.setattr(module, "list_logical_devices", lambda: devices)
    ours = strategy.cluster_resolver
    monkeypatch.setenv("TF_CONFIG", _environment(ours))
    theirs = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert ours.num_accelerators() == theirs.num_accelerators()
    assert ours.num_accelerators() == ({"GPU": gpus} if gpus else {})
    assert ours.num_accelerators("worker", 1) == {"GPU": 3}
    assert theirs.num_accelerators("worker", 1) == {"GPU": 3}


def _environment(resolver):
    task = {"type": resolver.task_type, "index": resolver.task_id}
    return json.dumps({"cluster": resolver.cluster_spec().as_dict(), "task": task})


def test_a_program_of_tensorflow_runs_as_it_is_written(run_program):
    said = run_program("tutorial_coordinator.py").stdout.splitlines()
    assert said[-2:] == ["steps 20", "tasks ['chief', 'ps', 'worker']"]
