"""Estimators of every kind train, evaluate, predict and export on this TensorFlow."""

import operator
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdist import estimator
from tfdist.estimator import _tf, experimental, export, v1
from tfdist.estimator.evaluator import EvaluationSchedule, executor_of

from ..support.raising import raises

# A process that is the chief of a cluster, as that of the feature tests is, has no
# devices under the names that a session looks for.
pytestmark = pytest.mark.own_process

_rng = np.random.default_rng(0)
NUMBERS = _rng.random((48, 3), np.float32)
WORDS = np.array(["a", "b"])[_rng.integers(0, 2, 48)]
SUM = NUMBERS.sum(axis=1, keepdims=True)
IS_LARGE = (SUM[:, 0] > 1.5).astype(np.int64)

_column = tf.feature_column
NUMERIC = [_column.numeric_column("numbers", shape=3)]
WORD = _column.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
DENSE = [*NUMERIC, _column.embedding_column(WORD, 4)]
SEQUENCE = [_column.sequence_numeric_column("series")]
LINEAR = {"linear_feature_columns": [WORD], "dnn_feature_columns": DENSE}


def features():
    return {"numbers": NUMBERS, "word": WORDS}


def data(features, labels):
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    return dataset.repeat(4).batch(16)


def receiver():
    given = {
        "numbers": tf.compat.v1.placeholder(tf.float32, [None, 3]),
        "word": tf.compat.v1.placeholder(tf.string, [None]),
    }
    return export.ServingInputReceiver(given, given)


def regression():
    return {"head": estimator.RegressionHead()}


class Losses(estimator.SessionRunHook):
    """Keeps the loss of each step."""

    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        (loss,) = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[-1:]
        return estimator.SessionRunArgs(loss)

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)


COLUMNS = {"feature_columns": [*NUMERIC, WORD]}
HIDDEN = {"hidden_units": [8], "feature_columns": DENSE}
COMBINED = {"dnn_hidden_units": [8], **LINEAR}
ADAM = tf.compat.v1.train.AdamOptimizer(0.01)
CANNED = {
    "BaselineClassifier": (IS_LARGE, {}),
    "BaselineRegressor": (SUM, {}),
    "BaselineEstimator": (SUM, regression()),
    "LinearClassifier": (IS_LARGE, COLUMNS),
    "LinearRegressor": (SUM, COLUMNS),
    "LinearEstimator": (SUM, {**regression(), "feature_columns": NUMERIC}),
    "DNNClassifier": (
        IS_LARGE,
        {**HIDDEN, "dropout": 0.1, "batch_norm": True, "optimizer": "Adam"},
    ),
    "DNNRegressor": (SUM, HIDDEN),
    "DNNEstimator": (IS_LARGE, {"head": estimator.MultiClassHead(3), **HIDDEN}),
    "DNNLinearCombinedClassifier": (IS_LARGE, COMBINED),
    "DNNLinearCombinedRegressor": (SUM, COMBINED),
    "DNNLinearCombinedEstimator": (
        IS_LARGE,
        {"head": estimator.BinaryClassHead(), **COMBINED},
    ),
    "v1.DNNClassifier": (IS_LARGE, {**HIDDEN, "optimizer": ADAM}),
    "v1.LinearRegressor": (SUM, COLUMNS),
}


def check_learning(model, input_fn, **options):
    """Trains, evaluates and predicts; returns the predictions."""
    losses = Losses()
    model.train(input_fn, hooks=[losses], **options)
    assert sum(losses.seen[-3:]) < sum(losses.seen[:3])  # Over the same rows.
    assert model.evaluate(input_fn, steps=3)["global_step"] == 12
    predictions = list(model.predict(input_fn))
    assert len(predictions) == 4 * 48
    return predictions


@pytest.mark.parametrize("name", CANNED)
def test_canned(name, tmp_path):
    labels, options = CANNED[name]
    config = estimator.RunConfig(str(tmp_path), tf_random_seed=1)
    make = operator.attrgetter(name)(estimator)
    model = make(config=config, **options)
    # A Baseline of several features fails on TensorFlow 2.15, too.
    used = {"numbers": NUMBERS} if "Baseline" in name else features()
    predictions = check_learning(model, lambda: data(used, labels), steps=12)
    path = model.export_saved_model(str(tmp_path / "export"), receiver)
    loaded = tf.saved_model.load(path.decode())
    predict = loaded.signatures["predict"]
    wanted = {key: tf.constant(value) for key, value in features().items()}
    keys = predict.structured_input_signature[1]
    served = predict(**{key: wanted[key] for key in keys})
    key = "predictions" if "predictions" in served else "logits"
    expected = [each[key] for each in predictions[:48]]
    np.testing.assert_allclose(served[key], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "labels", "options"),
    [
        ("RNNClassifier", IS_LARGE, {"cell_type": "lstm"}),
        ("RNNEstimator", SUM, {**regression(), "cell_type": "gru"}),
    ],
    ids=["RNNClassifier", "RNNEstimator"],
)
def test_recurrent(name, labels, options, tmp_path):
    def input_fn():
        def sparse(row, label):
            return {"series": tf.sparse.from_dense(row)}, label

        dataset = tf.data.Dataset.from_tensor_slices((NUMBERS, labels))
        return dataset.map(sparse).repeat(4).batch(16)

    model = getattr(experimental, name)(
        sequence_feature_columns=SEQUENCE,
        units=[4],
        optimizer="Adam",
        config=estimator.RunConfig(str(tmp_path), tf_random_seed=1),
        **options,
    )
    check_learning(model, input_fn)


def regularized_logistic_regression(l2):
    """The weights of three numbers and the bias that SDCA is to find, by Newton."""
    inputs = np.c_[NUMBERS, np.ones(48)]
    weights = np.zeros(4)
    for _ in range(20):
        likely = 1 / (1 + np.exp(-inputs @ weights))
        gradient = inputs.T @ (likely - IS_LARGE) + l2 * weights
        curvature = inputs.T @ (inputs * (likely * (1 - likely))[:, None])
        weights -= np.linalg.solve(curvature + l2 * np.eye(4), gradient)
    return weights


def test_linear_sdca(tmp_path):
    def input_fn():
        ids = np.array([f"row {i}" for i in range(48)])
        rows = {"numbers": NUMBERS, "id": ids}, IS_LARGE
        # SDCA visits examples in an order of its own: it is the optimum that two
        # runs share, and sixty passes get there.
        return tf.data.Dataset.from_tensors(rows).repeat(60)

    optimizer = experimental.LinearSDCA("id", symmetric_l2_regularization=0.1)
    model = estimator.LinearClassifier(
        NUMERIC, optimizer=optimizer, model_dir=str(tmp_path)
    )
    model.train(input_fn)
    found = [
        model.get_variable_value(f"linear/linear_model/{name}").ravel()
        for name in ("numbers/weights", "bias_weights")
    ]
    optimum = regularized_logistic_regression(l2=0.1)
    np.testing.assert_allclose(np.concatenate(found), optimum, atol=0.05)


def test_k_means(tmp_path):
    points = np.array([[0, 0], [0, 1], [9, 9], [9, 8]], np.float32)

    def input_fn():
        return tf.data.Dataset.from_tensors({"x": points}).repeat(10)

    model = v1.experimental.KMeans(
        2,
        feature_columns=[_column.numeric_column("x", shape=2)],
        use_mini_batch=False,
        initial_clusters="kmeans_plus_plus",
        seed=1,
        model_dir=str(tmp_path),
    )
    model.train(input_fn)
    centers = np.sort(model.cluster_centers(), axis=0)
    np.testing.assert_allclose(centers, [(0, 0.5), (9, 8.5)], atol=1e-5)


def linear_model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable("weight", [3, 1])
    value = tf.matmul(features, weight)
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": export.PredictOutput({"value": value})}
        return estimator.EstimatorSpec(
            mode, predictions={"value": value}, export_outputs=outputs
        )
    loss = tf.reduce_mean(tf.square(value - labels))
    step = tf.compat.v1.train.get_global_step()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.3)
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, global_step=step),
        eval_metric_ops={
            "error": tf.compat.v1.metrics.mean_absolute_error(labels, value)
        },
    )


def linear_input_fn():
    return tf.data.Dataset.from_tensor_slices((NUMBERS, SUM)).repeat().batch(16)


def linear_receiver():
    rows = tf.compat.v1.placeholder(tf.float32, [None, 3], "rows")
    return export.TensorServingInputReceiver(rows, {"rows": rows})


def test_train_and_evaluate_with_exporters_and_hooks(tmp_path):
    seen = []

    class Count(estimator.SessionRunHook):
        def after_run(self, run_context, run_values):
            seen.append(run_values)

    config = estimator.RunConfig(str(tmp_path), save_checkpoints_steps=20)
    model = estimator.Estimator(linear_model_fn, config=config)
    exporters = [
        estimator.LatestExporter("latest", linear_receiver, exports_to_keep=1),
        estimator.BestExporter("best", linear_receiver),
        estimator.FinalExporter("final", linear_receiver),
    ]
    metrics, exported = estimator.train_and_evaluate(
        model,
        estimator.TrainSpec(linear_input_fn, max_steps=60, hooks=[Count()]),
        estimator.EvalSpec(
            linear_input_fn, steps=3, exporters=exporters, throttle_secs=0
        ),
    )
    assert len(seen) == 60
    assert metrics["global_step"] == 60
    assert metrics["error"] < 0.1
    assert len(exported) == 3
    for exporter in exporters:
        *_, last = sorted((tmp_path / "export" / exporter.name).glob("[0-9]*"))
        serve = tf.saved_model.load(str(last)).signatures["serving_default"]
        served = serve(rows=tf.constant(NUMBERS))["value"]
        np.testing.assert_allclose(served, SUM, atol=0.5)
    # It goes on from the checkpoint, and starts another model from its weights.
    model.train(linear_input_fn, max_steps=70)
    assert model.get_variable_value("global_step") == 70
    warm = estimator.Estimator(
        linear_model_fn,
        model_dir=str(tmp_path / "warm"),
        warm_start_from=estimator.WarmStartSettings(str(tmp_path)),
    )
    warm.train(linear_input_fn, steps=1)
    assert warm.evaluate(linear_input_fn, steps=3)["error"] < 0.1


def run_evaluator(model, max_steps, **delays):
    """Runs the task `evaluator` until it has seen `max_steps`."""
    delays = {"start_delay_secs": 0, "throttle_secs": 0, **delays}
    spec = estimator.EvalSpec(linear_input_fn, steps=1, **delays)
    executor = executor_of(_tf.module("training")._TrainingExecutor)(
        estimator=model,
        train_spec=estimator.TrainSpec(linear_input_fn, max_steps=max_steps),
        eval_spec=spec,
    )
    executor.run_evaluator()


def test_an_evaluator_takes_the_next_checkpoint_where_one_is_gone(
    tmp_path, monkeypatch, caplog
):
    trained = threading.Event()
    found = []

    def after_the_chief(*args, **kwargs):
        if not trained.is_set():
            trained.set()
            chief.train(linear_input_fn, steps=10)
        found.append(evaluate(*args, **kwargs))
        return found[-1]

    config = estimator.RunConfig(str(tmp_path), keep_checkpoint_max=1)
    chief = estimator.Estimator(linear_model_fn, config=config)
    chief.train(linear_input_fn, steps=10)
    model = estimator.Estimator(linear_model_fn, config=config)
    evaluate = model.evaluate
    monkeypatch.setattr(model, "evaluate", after_the_chief)
    run_evaluator(model, max_steps=20)
    assert [metrics["global_step"] for metrics in found] == [20]
    assert "model.ckpt-10 was deleted during its evaluation" in caplog.text


@pytest.fixture
def trained(tmp_path):
    model = estimator.Estimator(linear_model_fn, model_dir=str(tmp_path))
    model.train(linear_input_fn, steps=1)
    return model


def test_an_evaluator_does_not_sleep_when_all_steps_are_done(trained, monkeypatch):
    def wake(seconds):
        raise AssertionError(f"it sleeps for {seconds} s")

    monkeypatch.setattr("time.sleep", wake)
    # The delays of an `EvalSpec` that is given none.
    run_evaluator(trained, 1, start_delay_secs=120, throttle_secs=600)
    assert list(Path(trained.model_dir, "eval").glob("events.*"))


@pytest.fixture
def sigterm():
    """Gives SIGTERM the handler of a program in place of the tests' own."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield signal.SIGTERM
    signal.signal(signal.SIGTERM, before)


def test_an_evaluator_that_must_end_too_early_fails(
    trained, sigterm, monkeypatch, caplog
):
    def told_to_end(*args, **kwargs):
        os.kill(os.getpid(), sigterm)

    monkeypatch.setattr(trained, "evaluate", told_to_end)
    with pytest.raises(SystemExit) as ended:
        run_evaluator(trained, max_steps=1)
    assert ended.value.code == 1
    assert "has not evaluated" in caplog.text
    assert "model.ckpt-1" in caplog.text


def test_an_evaluator_that_has_evaluated_the_last_checkpoint_succeeds(sigterm):
    schedule = EvaluationSchedule(lambda: "model.ckpt-1", None, None)
    schedule.evaluated = "model.ckpt-1"
    with pytest.raises(SystemExit) as ended, schedule.told_to_end():
        os.kill(os.getpid(), sigterm)
    assert ended.value.code == 0


def test_an_evaluator_does_not_hide_other_errors(tmp_path, monkeypatch):
    model = estimator.Estimator(linear_model_fn, model_dir=str(tmp_path))
    model.train(linear_input_fn, steps=1)

    def fail(*args, **kwargs):
        raise ValueError("of another kind")

    monkeypatch.setattr(model, "evaluate", fail)
    with raises(ValueError, "another kind"):
        run_evaluator(model, max_steps=1)


def test_one_device_strategy_and_metrics_of_keras_2(tmp_path):
    import tf_keras

    def model_fn(features, labels, mode):
        spec = linear_model_fn(features, labels, mode)
        error = tf_keras.metrics.Mean()
        error.update_state(spec.loss)
        return spec._replace(eval_metric_ops={"squared": error})

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    config = estimator.RunConfig(str(tmp_path), train_distribute=strategy)
    model = estimator.Estimator(model_fn, config=config)
    model.train(linear_input_fn, steps=50)
    metrics = model.evaluate(linear_input_fn, steps=3)
    assert metrics["squared"] == pytest.approx(metrics["loss"], rel=1e-5)
    assert metrics["loss"] < 0.1


def test_stops_early_without_decrease(tmp_path):
    config = estimator.RunConfig(str(tmp_path), save_checkpoints_steps=5)
    model = estimator.Estimator(linear_model_fn, config=config)
    stop = experimental.stop_if_lower_hook(
        model, "loss", threshold=10.0, run_every_secs=None, run_every_steps=5
    )
    estimator.train_and_evaluate(
        model,
        estimator.TrainSpec(linear_input_fn, max_steps=1000, hooks=[stop]),
        estimator.EvalSpec(linear_input_fn, steps=1, throttle_secs=0),
    )
    assert model.get_variable_value("global_step") < 50


def test_evaluates_in_memory_while_it_trains(tmp_path):
    model = estimator.Estimator(linear_model_fn, model_dir=str(tmp_path))
    hook = experimental.InMemoryEvaluatorHook(model, linear_input_fn, steps=1)
    model.train(linear_input_fn, hooks=[hook], steps=3)
    assert (tmp_path / "eval").exists()


def test_model_of_keras_2_becomes_an_estimator(tmp_path):
    import tf_keras

    network = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,))])
    network.compile("sgd", "mse")
    model = estimator.model_to_estimator(network, model_dir=str(tmp_path))
    before = model.evaluate(linear_input_fn, steps=3)["loss"]
    model.train(linear_input_fn, steps=50)
    assert model.evaluate(linear_input_fn, steps=3)["loss"] < before


def test_has_the_names_of_tf_estimator():
    assert estimator.__all__ == sorted(estimator.__all__)
    for module in (estimator, experimental, export, v1):
        assert all(hasattr(module, name) for name in module.__all__)
    # What tensorflow-estimator exports, by its own register, is all there.
    from tfdist.estimator.names import v2

    for name in vars(v2):
        assert name in estimator.__all__, name
    for module in (experimental, export):
        short = module.__name__.rpartition(".")[2]
        assert set(vars(vars(v2)[short])) == set(module.__all__)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("TPUEstimator", "modules that TensorFlow 2.16 removed"),
        ("BoostedTreesClassifier", "no longer has boosted trees"),
        ("inputs", "tfdist.estimator.v1.inputs"),
        ("Estimater", "no such name either"),
    ],
)
def test_names_that_are_not_there_say_why(name, why):
    with pytest.raises(AttributeError, match=f"no {name!r}.*{why}"):
        getattr(estimator, name)


def test_tensorflow_and_keras_are_left_as_they_are(run_program):
    done = run_program("estimator_import.py")
    assert done.stdout == "same\n", done.stderr


def test_layers_of_tf1_after_an_import_that_failed(run_program):
    done = run_program("estimator_after_failed_import.py")
    expected = "5 ['dense/bias', 'dense/bias/Adam']"
    assert done.stdout.splitlines()[-1:] == [expected], done.stderr


def test_python_still_names_a_wrong_argument():
    with raises(TypeError, "'model_dri'"):
        estimator.RunConfig(model_dri="x")
