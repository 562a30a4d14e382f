"""A strategy as an object: copies, devices, garbage collection and graph mode."""

import importlib
import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

import tf_config
import tfdist
from tfdist.cluster.settings import JobArguments, job_settings
from tfdist.strategies import strategy_for

from ..launch_programs.launcher import PROGRAMS
from ..support import jobs
from ..support.raising import raises

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


ALL = {
    **{name: getattr(tfdist, name) for name in STRATEGIES},
    "LocalUpdateStrategy": tfdist.LocalUpdateStrategy,
    "PipelineStrategy": tfdist.research.PipelineStrategy,
}
KEPT = tfdist.Checkpoints("kept", every=5, keep=2)
WORKERS = tf_config.Cluster(chief=("a:1",), worker=("a:2", "a:3"))
CHIEF = tf_config.TFConfig(WORKERS, tf_config.Task("chief", 0))


def make(name, **options):
    first = {"LocalUpdateStrategy": 2, "PipelineStrategy": 2}.get(name)
    return ALL[name](*([] if first is None else [first]), **options)


@pytest.mark.parametrize(
    ("jobs_of_cluster", "gpus", "expected"),
    [
        (None, 0, None),
        (None, 1, None),
        (None, 2, "MirroredStrategy"),
        ("chief ps worker", 0, "ParameterServerStrategy"),
        ("chief ps worker", 2, "ParameterServerStrategy"),
        ("worker", 0, "MultiWorkerMirroredStrategy"),
        ("chief worker", 2, "MultiWorkerMirroredStrategy"),
        ("worker evaluator", 0, "MultiWorkerMirroredStrategy"),
    ],
)
def test_the_cluster_and_the_gpus_call_for_a_strategy(jobs_of_cluster, gpus, expected):
    cluster = jobs_of_cluster and tf_config.Cluster(
        **{job: (f"a:{i}",) for i, job in enumerate(jobs_of_cluster.split(), 1)}
    )
    assert strategy_for(cluster, gpus) == expected


def test_without_a_cluster_the_strategy_is_that_of_one_process(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    made = tfdist.strategy()
    assert made is tf.distribute.get_strategy()
    assert made.is_chief
    assert made.barrier() is None
    with monkeypatch.context() as two_gpus:
        two_gpus.setattr(tf.config, "list_logical_devices", lambda kind: ["a", "b"])
        made = tfdist.strategy()
    assert isinstance(made, tf.distribute.MirroredStrategy)
    assert made.is_chief
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"ps": ["a:1"]}}))
    with raises(tf_config.ClusterError, '"task"'):
        tfdist.strategy()


@pytest.mark.parametrize("name", ALL)
def test_every_strategy_shows_the_same_arguments(name):
    shown = inspect.signature(ALL[name]).parameters
    assert {"cluster_resolver", *JobArguments.__annotations__} <= shown.keys()
    assert shown["startup_timeout"].default == 60.0
    assert hasattr(ALL[name], "is_chief")
    assert hasattr(ALL[name], "barrier")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"startup_timeout": 0},
            ValueError,
            "startup_timeout must be > 0 seconds; rec",
        ),
        (
            {"peer_timeout": float("nan")},
            ValueError,
            "peer_timeout must be > 0 seconds; received nan",
        ),
        (
            {"checkpoint_interval": float("nan")},
            ValueError,
            "> 0 seconds; received nan",
        ),
        (
            {"checkpoints": "kept"},
            TypeError,
            "a tfdist.Checkpoints.*pass checkpoint_dir",
        ),
        (
            {"checkpoints": KEPT, "checkpoint_dir": "other"},
            ValueError,
            "checkpoints= and checkpoint_dir= describe the same checkpoints",
        ),
        ({"checkpoints_dir": "a"}, TypeError, "{} has no.*mean: checkpoint_dir"),
        ({"cluster": CHIEF}, TypeError, "Did you mean: cluster_resolver"),
        ({"num_worker": 4}, TypeError, "{} has no.* local --num_workers=4 .*peer_t"),
    ],
)
def test_every_strategy_refuses_the_same_arguments(name, options, error, words):
    with pytest.raises(error, match=words.format(name)):
        make(name, **options)


def test_an_argument_that_is_missing_is_named_among_all():
    with raises(
        TypeError, "LocalUpdateStrategy", "'local_steps'", "are local_steps, mix"
    ):
        tfdist.LocalUpdateStrategy()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        *[
            (
                name,
                {"min_workers": 1},
                f"{name} needs all of its 2 workers.*min_workers=1",
            )
            for name in (
                "MultiWorkerMirroredStrategy",
                "RingStrategy",
                "PipelineStrategy",
            )
        ],
        ("LocalUpdateStrategy", {"min_workers": 4}, "from 1 to 3.*received 4"),
        (
            "LocalUpdateStrategy",
            {"checkpoints": KEPT},
            "writes no checkpoints; received",
        ),
    ],
)
def test_what_a_strategy_cannot_hold_is_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        make(name, cluster_resolver=CHIEF, startup_timeout=0.1, **options)


@pytest.mark.parametrize(
    ("given", "told", "expected"),
    [
        ({}, "", (None, 30, 3)),
        ({}, "told", ("told", 30, 3)),
        ({"checkpoints": KEPT}, "told", ("kept", 5, 2)),
        ({"checkpoints": tfdist.Checkpoints(every=5)}, "told", ("told", 5, 3)),
        ({"checkpoint_dir": "a", "checkpoints_to_keep": 1}, "told", ("a", 30, 1)),
        ({"checkpoint_interval": 5}, "told", ("told", 5, 3)),
    ],
)
def test_checkpoints_are_as_given_or_as_the_launcher_says(
    given, told, expected, monkeypatch
):
    monkeypatch.setenv("TFDIST_CHECKPOINT_DIR", told)
    found = job_settings("Strategy", given).checkpoints
    assert (found.directory or None, found.every, found.keep) == expected
    assert found is not given.get("checkpoints")


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
    words = rf"tfdist\.{name} trains in eager mode, .*Construct it outside.*estimator"
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


@pytest.mark.cluster
def test_one_script_trains_alike_wherever_it_is_started(tmp_path):
    script = Path(__file__).parents[1] / "programs" / "tutorial_anywhere.py"

    def lines(start, *command):
        cwd = tmp_path / command[0].strip("-")
        cwd.mkdir()
        said = start(*command[1:], cwd=cwd).stdout.splitlines()
        words = [(line.partition("] ")[2] or line).strip() for line in said]
        found = [w.split() for w in words if w.startswith(("fit ", "loop "))]
        return [[float(x) for x in each if "." in x] for each in found], {
            each[1] for each in found if each[0] == "fit"
        }

    plain, names = lines(jobs.run, "plain", script)
    assert names == {"_DefaultDistributionStrategy"}
    fit, names = lines(jobs.launch, "ps", script)
    assert names == {"ParameterServerStrategy"}
    assert fit[0][1] < fit[0][0] / 1.5
    flags = ["--num_ps=0", "--chatty"]
    both, names = lines(jobs.launch, "workers", *flags, script, "resolver")
    assert names == {"MultiWorkerMirroredStrategy"}
    assert len(both) == 4
    for each in both:
        expected = plain[0] if len(each) == 2 else plain[1]
        assert each == pytest.approx(expected, rel=1e-4)
