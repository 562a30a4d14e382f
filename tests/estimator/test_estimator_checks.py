"""Errors raised before an Estimator starts any task."""

from contextlib import nullcontext

import keras
import pytest
import tensorflow as tf

import tfdist
from tf_config import Cluster, ClusterError, Task, TFConfig
from tfdist import estimator
from tfdist.estimator.clusters import StrategyKind, check_cluster, kind_of
from tfdist.estimator.roles import start_server

from ..support.raising import raises

ALONE = Cluster.from_hosts(chief="a:1", evaluator="b:1")
PS = Cluster.from_hosts(chief="a:1", ps="b:1", worker="c:1")
WORKERS = Cluster.from_hosts(worker="a:1,b:1")
WITH_CHIEF = Cluster.from_hosts(chief="a:1", worker="b:1")


@pytest.mark.parametrize(
    ("kind", "cluster", "words"),
    [
        (StrategyKind.DEVICE_SETTER, PS, None),
        (StrategyKind.DEVICE_SETTER, ALONE, None),
        (StrategyKind.PARAMETER_SERVER, PS, None),
        (StrategyKind.ONE_PROCESS, ALONE, None),
        (StrategyKind.SYNCHRONOUS, WORKERS, None),
        (StrategyKind.SYNCHRONOUS, WITH_CHIEF, None),
        (StrategyKind.SYNCHRONOUS, ALONE, None),
        (StrategyKind.DEVICE_SETTER, WORKERS, "worker: without a str.*Add .* a ps"),
        (
            StrategyKind.DEVICE_SETTER,
            WITH_CHIEF,
            "chief and worker: without a strategy",
        ),
        (StrategyKind.PARAMETER_SERVER, WITH_CHIEF, "no ps for the variables"),
        (StrategyKind.ONE_PROCESS, PS, "in one process: give the address of a chief"),
        (StrategyKind.ONE_PROCESS, WORKERS, "trains in one process"),
        (StrategyKind.SYNCHRONOUS, PS, "need no ps: remove it"),
    ],
)
def test_which_clusters_fit_which_strategy(kind, cluster, words):
    with pytest.raises(ClusterError, match=words) if words else nullcontext():
        check_cluster(kind, cluster)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, '
         '"task": {"type": "ps", "index": 0}}', "no chief, the task that coordinates"),
        ('{"cluster": {"master": ["a:1"]}, "task": {"type": "master", "index": 0}}',
         "unknown job 'master'.*chief"),
        ('{"cluster": {"chief": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
         "worker:0 is not in the cluster"),
        ('{"cluster": {"chief": ["a:1"]}}', 'TF_CONFIG has no "task"'),
        ("{cluster}", "TF_CONFIG is not JSON"),
    ],
)  # fmt: skip
def test_tf_config_that_is_wrong(text, words, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ClusterError, match=words):
        estimator.RunConfig()
    with pytest.raises(ClusterError, match=words):
        estimator.ParameterServerStrategy()
    with pytest.raises(ClusterError, match=words):
        estimator.Estimator(lambda features, labels, mode: None)


def test_run_config_checks_its_cluster(monkeypatch):
    config = TFConfig(WITH_CHIEF, Task("worker", 0))
    monkeypatch.setenv("TF_CONFIG", config.to_json())
    with raises(ClusterError, "address of a ps"):
        estimator.RunConfig()
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with raises(ClusterError, "one process"):
        estimator.RunConfig(train_distribute=strategy)


@pytest.mark.parametrize(
    "cls",
    [
        tfdist.ParameterServerStrategy,
        tfdist.MultiWorkerMirroredStrategy,
        tfdist.RingStrategy,
        tf.distribute.ParameterServerStrategy,
    ],
)
def test_strategies_of_keras_are_named(cls):
    strategy = object.__new__(cls)  # It would connect to a cluster.
    words = rf"{cls.__name__}, which is made for eager execution: use tfdist.estimator"
    with pytest.raises(estimator.StrategyError, match=words):
        estimator.RunConfig(train_distribute=strategy)


def test_proxy_between_the_tasks(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TFConfig(PS, Task("worker", 0)).to_json())
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    with raises(ClusterError, "http_proxy", "a, b, c"):
        estimator.RunConfig()
    monkeypatch.setenv("TF_CONFIG", TFConfig(WORKERS, Task("worker", 0)).to_json())
    with raises(ClusterError, "http_proxy"):
        estimator.MultiWorkerMirroredStrategy()


class OwnStrategy(tf.distribute.OneDeviceStrategy):
    """As users have them."""


def test_strategies_of_ones_own_go_by_their_base():
    assert kind_of(OwnStrategy("CPU:0")) is StrategyKind.ONE_PROCESS
    assert kind_of(estimator.ParameterServerStrategy()) is StrategyKind.PARAMETER_SERVER


def test_a_port_that_is_taken_is_named(monkeypatch):
    def fail(*args, **kwargs):
        raise tf.errors.UnknownError(None, None, "Could not start gRPC server")

    monkeypatch.setattr(tf.distribute, "Server", fail)
    monkeypatch.setenv("TF_CONFIG", TFConfig(PS, Task("worker", 0)).to_json())
    with raises(ClusterError, "worker:0", "c:1"):
        start_server(estimator.RunConfig())


def test_evaluation_has_no_cluster():
    with raises(estimator.StrategyError, "eval_distribute"):
        estimator.RunConfig(eval_distribute=estimator.ParameterServerStrategy())


def model_fn(features, labels, mode):
    raise AssertionError("nothing was to be built")


@pytest.mark.parametrize("how", ["config", "argument"])
def test_model_dir_that_cannot_be_written(how, tmp_path):
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "model")
    if how == "config":
        model = estimator.Estimator(model_fn, config=estimator.RunConfig(path))
    else:
        model = estimator.Estimator(model_fn, model_dir=path)
    with raises(estimator.ModelDirError, "written", "model_dir="):
        model.train(lambda: None, steps=1)
    spec = estimator.TrainSpec(lambda: None, max_steps=1)
    with raises(estimator.ModelDirError, "file/model"):
        estimator.train_and_evaluate(model, spec, estimator.EvalSpec(lambda: None))


@pytest.mark.parametrize("task", ["chief:0", "evaluator:0"])
def test_model_dir_is_checked_before_a_task_of_a_cluster_starts(
    task, tmp_path, monkeypatch
):
    monkeypatch.setenv("TF_CONFIG", TFConfig(PS, Task.parse(task)).to_json())
    (tmp_path / "file").touch()
    model = estimator.Estimator(model_fn, model_dir=str(tmp_path / "file" / "model"))
    spec = estimator.TrainSpec(lambda: None, max_steps=1)
    with raises(estimator.ModelDirError, "file/model"):
        estimator.train_and_evaluate(model, spec, estimator.EvalSpec(lambda: None))


def test_a_directory_that_can_be_written_is_left_empty(tmp_path):
    from tfdist.estimator.environment import check_writable

    check_writable(str(tmp_path / "new" / "model"))
    assert list((tmp_path / "new" / "model").iterdir()) == []


def rows():
    return tf.data.Dataset.from_tensors(({"x": [[1.0]]}, [[1.0]]))


@pytest.mark.parametrize("make", [lambda o: o, lambda o: lambda: o], ids=["", "lambda"])
def test_optimizer_of_keras_3(make, tmp_path):
    model = estimator.LinearRegressor(
        [tf.feature_column.numeric_column("x")],
        optimizer=make(keras.optimizers.Adam(0.1)),
        model_dir=str(tmp_path),
    )
    words = r"the optimizer is from Keras 3.*tf_keras.optimizers.legacy.Adam"
    with pytest.raises(estimator.Keras3Error, match=words):
        model.train(rows, steps=1)


def test_metric_of_keras_3():
    with raises(estimator.Keras3Error, "'mae'", "tf_keras.metrics.Mean"):
        estimator.EstimatorSpec(
            estimator.ModeKeys.EVAL,
            loss=0.0,
            eval_metric_ops={"mae": keras.metrics.MeanAbsoluteError()},
        )


def test_model_of_keras_3():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with raises(estimator.Keras3Error, "tf_keras model"):
        estimator.model_to_estimator(model)
