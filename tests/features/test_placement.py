"""Placement of variables."""

import importlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled, mlp

import launch
import tfdist
from tfdist.parameter_server import extended

from ..support.deadline import STARTUP_DEADLINE

pytestmark = pytest.mark.parameter_server

layers = keras.layers

PATIENT = {"startup_timeout": STARTUP_DEADLINE}


def on_ps(variable):
    device = variable.value.device
    assert device.startswith("/job:ps/replica:0/task:"), device
    return int(device.removeprefix("/job:ps/replica:0/task:").split("/")[0])


@pytest.mark.feature("`BestFit()`, the default")
def test_bytes_are_balanced(strategy):
    with strategy.scope():
        kept = [
            keras.Variable(np.zeros(1_000_000, "float32"), name=f"balanced_{i}")
            for i in range(8)
        ]
    placed = strategy.placement_report().variables
    placed = [each for each in placed if each.spec.name.startswith("balanced_")]
    # Larger than what the tests before have left uneven.
    assert [each.spec.size_bytes for each in placed] == [4_000_000] * 8
    assert [each.ps for each in placed] == [on_ps(variable) for variable in kept]
    assert {each.ps for each in placed} == {0, 1}


@pytest.mark.in_gate
@pytest.mark.feature("Optimizer slots live with their weights")
def test_slots_live_beside_weights(strategy):
    with strategy.scope():
        model = mlp(optimizer="adam")
        model.optimizer.build(model.trainable_variables)
    slots = model.optimizer.variables[2:]
    assert len(slots) == 2 * len(model.trainable_variables)
    for weight in model.trainable_variables:
        name = weight.path.replace("/", "_")
        beside = [slot for slot in slots if name in slot.path]
        assert len(beside) == 2
        assert {on_ps(slot) for slot in beside} == {on_ps(weight)}


@pytest.mark.feature("`strategy.placement_report()`")
def test_placement_report(strategy):
    with strategy.scope():
        model = compiled(layers.Dense(25, name="reported"))
    report = strategy.placement_report()
    kernel, bias = model.trainable_variables
    placed = {v.spec.name: v for v in report.variables if "reported/" in v.spec.name}
    assert placed[kernel.path].spec.size_bytes == 4 * 25 * 4
    assert placed[kernel.path].ps == on_ps(kernel)
    assert placed[bias.path].ps == on_ps(bias)
    assert sum(report.bytes_per_ps) == sum(v.spec.size_bytes for v in report.variables)
    assert kernel.path in str(report)
    assert f"{sum(s.size_bytes for s in report.on(0)):,}" in str(report)


@pytest.fixture(scope="module")
def own_placement(run_program, tmp_path_factory):
    log_dir = str(tmp_path_factory.mktemp("servers"))
    with launch.servers(2, 1, log_dir=log_dir, **PATIENT) as servers:
        result = run_program("own_placement.py", config=servers.tf_config)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.feature("A placement of your own")
def test_own_placement(own_placement):
    ps = {name: d.split("task:")[1][0] for name, d in own_placement["devices"].items()}
    assert len(ps) >= 4
    assert all(index == ("1" if "far" in name else "0") for name, index in ps.items())
    assert np.isfinite(own_placement["loss"]).all()


@pytest.mark.feature(
    "A placement that does not return the index of a ps", "no", "the error names it"
)
def test_placement_out_of_range(own_placement):
    words = own_placement["nowhere"]
    assert "ByName.place() returned 7 for nowhere/kernel" in words
    assert "0 to 1" in words


@pytest.mark.feature("`partitioner` for a `tf.Variable` of your own")
def test_partitioned_variable(own_placement):
    assert len(own_placement["shards"]) == 2
    assert all("/job:ps" in device for device in own_placement["shards"])


@pytest.mark.feature("`partitioner` for a Keras variable")
def test_partitioned_keras_variable(own_placement):
    # ByName puts both shards on ps 0.
    assert len(own_placement["kernel"]) == 2
    assert all("/job:ps/replica:0/task:0" in d for d in own_placement["kernel"])


@pytest.fixture(scope="module")
def planned(run_program, tmp_path_factory):
    log_dir = tmp_path_factory.mktemp("servers")
    with launch.servers(2, 2, log_dir=str(log_dir), **PATIENT) as servers:
        path = str(log_dir / "plan.json")
        result = run_program("planned.py", path, config=servers.tf_config)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.feature("`tfdist.plan` and `Planned`: balanced to 1.02, as predicted")
def test_planned(planned):
    assert planned["planned"] <= 1.02
    assert planned["matches"], planned["receipt"]
    assert planned["actual"] == pytest.approx(planned["planned"])
    assert planned["shards"], "nothing had to be split"
    assert planned["loss"][-1] < planned["loss"][0]
    assert sum(planned["steps"]) == 24


@pytest.mark.feature(
    "A model that differs from the plan", "no", "the error names the first difference"
)
def test_model_that_is_not_planned(planned):
    assert planned["other"].startswith("other shape: ")
    assert "large/kernel has the shape (48, 30)" in planned["other"]
    assert "(48, 40)" in planned["other"]


@pytest.fixture(scope="module", params=["build", "load"])
def loaded(request, run_program, tmp_path_factory):
    log_dir = tmp_path_factory.mktemp("servers")
    arguments = request.param, str(log_dir / "model.keras")
    with launch.servers(2, 1, log_dir=str(log_dir), **PATIENT) as servers:
        result = run_program(
            "planned_and_loaded.py", *arguments, config=servers.tf_config
        )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.feature("A planned model loaded from `.keras`, and a plan of such a model")
def test_planned_model_is_loaded(loaded):
    assert loaded["planned"] <= 1.02
    assert loaded["receipt"].endswith("\nas planned"), loaded["receipt"]


@pytest.mark.feature('A plan of tables with `partition_strategy="mod"`')
def test_planned_table_that_is_dealt_out(loaded):
    assert loaded["dealt"] == [51, 50]


@pytest.mark.feature(
    "An optimizer whose slots differ from the plan",
    "no",
    "the error names the first difference",
)
def test_slots_that_are_not_planned(loaded):
    assert "extra slot: the plan has no velocity_hat of " in loaded["extra"]
    assert "it has momentum, velocity" in loaded["extra"]
    assert "missing slot: the plan has momentum of " in loaded["missing"]


@pytest.mark.feature(
    "An `EmbeddingBag` table split by columns",
    "no",
    "the error names the table when it is built",
)
def test_bags_by_columns(strategy):
    columns = tfdist.fixed_size_partitioner(2, axis=1)
    with strategy.scope():
        bag = tfdist.embedding.EmbeddingBag(
            10, 4, name="by_columns", partitioner=columns
        )
        words = r"by_columns/embeddings of shape \(10, 4\) can be split by rows only"
        with pytest.raises(ValueError, match=words):
            bag.build((None, 3))


def test_a_variable_is_created_without_a_warning(strategy, caplog, monkeypatch):
    # TensorFlow warns once in a process, which an earlier test may have used up.
    deprecation = importlib.import_module("tensorflow.python.util.deprecation")
    monkeypatch.setattr(deprecation, "_PRINTED_WARNING", {})
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    with strategy.scope(), caplog.at_level("WARNING", "tensorflow"):
        tf.Variable(1.0)
        keras.Variable([1.0, 2.0])
    assert caplog.messages == []


def test_a_colocation_around_a_variable_does_not_move_it():
    with tf.Graph().as_default() as graph:
        first = tf.constant(1.0, name="first")
        with graph.colocate_with(first.op), extended._without_colocation():
            assert b"loc:@first" not in tf.constant(2.0).op.colocation_groups()
