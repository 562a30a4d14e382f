"""Misuse: refused before the first step, with what to do instead."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled, mlp

import launch
import tf_config
import tfdist

layers = keras.layers
optimizers = keras.optimizers

CHIEF = tf_config.Task("chief", 0)


@pytest.fixture
def refused(runs_on_workers):
    """Asserts that `fit` raises these words, and that no step runs."""

    def refuse(model, data, words, error=ValueError):
        with runs_on_workers(0), pytest.raises(error, match=words):
            model.fit(*data, batch_size=8, verbose=0)

    return refuse


@pytest.mark.feature(
    "`gradient_accumulation_steps`", "no", "workers would clear each other's sums"
)
def test_gradient_accumulation(strategy, regression, refused):
    with strategy.scope():
        model = mlp(optimizer=optimizers.SGD(gradient_accumulation_steps=2))
    refused(
        model,
        regression,
        "(?s)SGD has gradient_accumulation_steps=2.*lost or counted twice.*larger batch",
    )


@pytest.mark.feature("`run_eagerly=True`", "no", "it would run on the chief")
def test_run_eagerly(strategy, regression, refused):
    with strategy.scope():
        model = mlp(run_eagerly=True)
    refused(model, regression, "run_eagerly=True would run every step on the chief")


@pytest.mark.feature("`jit_compile=True`", "no", "a step spans several devices")
def test_jit_compile(strategy, regression, refused):
    with strategy.scope():
        model = mlp(jit_compile=True)
    refused(model, regression, "jit_compile=True.*jit_compile=False")


@pytest.mark.feature(
    "`LossScaleOptimizer`", "no", "workers could make the scale 0; use mixed_bfloat16"
)
def test_loss_scale_optimizer(strategy, regression, refused):
    with strategy.scope():
        model = mlp(optimizer=optimizers.LossScaleOptimizer(optimizers.SGD()))
    refused(model, regression, "LossScaleOptimizer.*mixed_bfloat16")


@pytest.mark.feature("`mixed_float16`", "no", "Keras trains it by `LossScaleOptimizer`")
def test_mixed_float16(strategy, regression, refused):
    with strategy.scope():
        dense = layers.Dense(1, dtype="mixed_float16")
        model = keras.Sequential([keras.Input((4,)), dense], name="half")
        model.dtype_policy = keras.DTypePolicy("mixed_float16")
        model.compile("sgd", "mse")
    refused(model, regression, "LossScaleOptimizer.*mixed_bfloat16")


@pytest.mark.feature(
    "`ema_overwrite_frequency`", "no", "it would erase other workers' updates"
)
def test_ema_overwrite_frequency(strategy, regression, refused):
    with strategy.scope():
        model = mlp(optimizer=optimizers.SGD(use_ema=True, ema_overwrite_frequency=3))
    refused(model, regression, "ema_overwrite_frequency=3.*Set it to None")


@pytest.mark.feature(
    "`ScheduleFreeAdamW`", "no", "it needs two variables of one moment"
)
@pytest.mark.skipif(
    not hasattr(optimizers, "ScheduleFreeAdamW"), reason="Keras has it since 3.14"
)
def test_schedule_free_adamw(strategy, regression, refused):
    with strategy.scope():
        model = mlp(optimizer=optimizers.ScheduleFreeAdamW())
    refused(model, regression, "ScheduleFreeAdamW.*Use AdamW")


def test_second_optimizer_is_checked(strategy, regression, refused):
    with strategy.scope():
        model = mlp()
        model.another = optimizers.Adam(gradient_accumulation_steps=4)
    refused(model, regression, "Adam has gradient_accumulation_steps=4")


@pytest.mark.feature(
    "Stateful recurrent layers", "no", "workers would overwrite the state"
)
def test_stateful_rnn(strategy, regression, refused):
    with strategy.scope():
        inputs = keras.Input(batch_shape=(8, 4))
        hidden = layers.LSTM(3, stateful=True, name="memory")(
            layers.Reshape((2, 2))(inputs)
        )
        model = keras.Model(inputs, layers.Dense(1)(hidden))
        model.compile("sgd", "mse")
    refused(model, regression, "'memory' has stateful=True.*Use stateful=False")


@pytest.mark.feature(
    "`SpectralNormalization`", "no", "it would erase other workers' gradients"
)
def test_spectral_normalization(strategy, regression, refused):
    with strategy.scope():
        model = compiled(layers.SpectralNormalization(layers.Dense(1)))
    refused(model, regression, "SpectralNormalization.*MaxNorm")


@pytest.mark.feature("float8", "no", "its scales follow the order of the steps")
def test_float8(strategy, regression, refused):
    with strategy.scope():
        model = mlp()
        model.quantize("float8")
        model.compile("sgd", "mse")
    refused(model, regression, "float8.*mixed_bfloat16")


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros", name="value")

    def update_state(self, y, y_pred, sample_weight=None):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(y)))

    def result(self):
        return self.largest + 0


@pytest.mark.feature(
    "A metric that sets a variable to its maximum", "no", "it is no sum over workers"
)
def test_metric_that_is_no_sum(strategy, regression, refused):
    with strategy.scope():
        model = mlp(metrics=[Largest()])
    refused(model, regression, r"sums over the workers.*maximum.*assign_add")


@pytest.mark.feature(
    "A metric built outside of the scope", "no", "it would lose updates"
)
def test_metric_outside(strategy, regression, refused):
    metric = keras.metrics.MeanAbsoluteError(name="elsewhere")
    with strategy.scope():
        model = mlp(metrics=[metric])
    refused(
        model,
        regression,
        r"outside of the strategy's scope: elsewhere/.*with strategy.scope\(\)",
    )


@pytest.mark.feature("An optimizer built outside of the scope", "no", "as a metric")
def test_optimizer_outside(strategy, regression, refused):
    optimizer = optimizers.SGD()
    with strategy.scope():
        model = mlp(optimizer=optimizer)
    refused(model, regression, "optimizer SGD was created outside of .* scope")


@pytest.mark.feature("`compile` outside of the scope", "no", "as a metric")
def test_compile_outside(strategy, regression, refused):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    refused(model, regression, r"call model.compile\(...\), inside")


@pytest.mark.feature(
    "A step of one's own outside of `strategy.run`", "no", "says how to schedule it"
)
def test_step_outside_of_run(strategy, regression):
    with strategy.scope():
        model = mlp()

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    with pytest.raises(RuntimeError, match=r"calls strategy\.run\(step"):
        strategy.coordinator.schedule(step, args=(tf.constant(regression[0]),))


@pytest.mark.feature("A layer built outside of the scope", "no", "as a metric")
def test_layer_outside(strategy, regression, refused):
    layer = layers.Dense(1, name="elsewhere")
    layer.build((None, 4))
    with strategy.scope():
        model = compiled(layer)
    refused(model, regression, "outside of the strategy's scope: .*elsewhere/kernel")


@pytest.mark.feature("A `tf.Variable` made outside of the scope", "no", "as a metric")
def test_variable_outside(strategy, regression, refused):
    count = tf.Variable(0.0, name="mine")

    class Counting(keras.Sequential):
        def train_step(self, data):
            count.assign_add(1.0)
            return super().train_step(data)

    with strategy.scope():
        model = Counting([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    refused(model, regression, "outside of the strategy's scope: mine")


def test_metric_outside_is_refused_by_evaluate(strategy, regression):
    metric = keras.metrics.MeanAbsoluteError(name="elsewhere")
    with strategy.scope():
        model = mlp(metrics=[metric])
    with pytest.raises(ValueError, match="outside of the strategy's scope: elsewhere"):
        model.evaluate(*regression, verbose=0)


CALLS = ("fit", "evaluate", "predict", "train_on_batch", "predict_on_batch")


# What is raised where nobody can catch it is printed, in full.
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", CALLS)
def test_error_on_a_worker_is_raised(strategy, regression, runs_on_workers, call):
    """Once, in a few words; and the cluster trains on."""
    x, y = regression
    with strategy.scope():
        model = compiled(tfdist.Embedding(4, 2), layers.Flatten(), layers.Dense(1))
    bad = np.full((64, 4), 9)
    data = (bad,) if call.startswith("predict") else (bad, y)
    options = {} if call.endswith("batch") else {"batch_size": 8, "verbose": 0}
    with pytest.raises(tf.errors.InvalidArgumentError, match="from 0 to 3") as raised:
        getattr(model, call)(*data, **options)
    assert raised.value.message.startswith("a step failed on worker")
    assert raised.value.message.count("\n") <= 1
    with strategy.scope():
        model = mlp()
    with runs_on_workers(8):
        model.fit(x, y, batch_size=8, verbose=0)


def test_error_of_a_batch_that_was_not_waited_for_is_not_kept(strategy, regression):
    class Stop(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            raise KeyError("stopped")

    with strategy.scope():
        model = compiled(tfdist.Embedding(4, 2), layers.Flatten(), layers.Dense(1))
    ids = np.zeros((64, 4))
    ids[-1] = 9
    with pytest.raises(KeyError, match="stopped"):
        model.predict(ids, batch_size=8, verbose=0, callbacks=[Stop()])
    model.fit(np.zeros((64, 4)), regression[1], batch_size=8, verbose=0)


@pytest.mark.feature(
    "A second strategy in one process", "no", "TensorFlow connects once"
)
def test_second_strategy(strategy, servers):
    with pytest.raises(RuntimeError, match="has a ParameterServerStrategy already"):
        tfdist.ParameterServerStrategy(servers.tf_config)


# The rest is refused before the process connects, so that the shared strategy stays.


def config_of(task, **jobs):
    return tf_config.TFConfig(tf_config.Cluster.from_hosts(**jobs), task)


@pytest.mark.feature("No TF_CONFIG", "no", "says how to start a cluster")
def test_no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(tf_config.ClusterError, match="TF_CONFIG.*not set"):
        tfdist.ParameterServerStrategy()


@pytest.mark.feature("A strategy on a ps or a worker", "no", "it is the chief's")
@pytest.mark.parametrize("task", ["ps:0", "worker:0"])
def test_strategy_on_a_server(task):
    config = config_of(tf_config.Task.parse(task), chief="a:1", ps="a:2", worker="a:3")
    words = f"runs on the chief alone; this task is {task}.*python -m tfdist.server"
    with pytest.raises(tf_config.ClusterError, match=words):
        tfdist.ParameterServerStrategy(config)


@pytest.mark.feature(
    "A cluster without a ps", "no", "there is nowhere to put variables"
)
def test_cluster_without_ps():
    config = config_of(CHIEF, chief="a:1", worker="a:3")
    words = "needs a cluster with a ps.*received the jobs chief, worker"
    with pytest.raises(tf_config.ClusterError, match=words):
        tfdist.ParameterServerStrategy(config)


@pytest.mark.feature("A `tf.train.ClusterSpec` for a cluster", "no", "names no task")
def test_cluster_of_another_type():
    spec = tf.train.ClusterSpec({"ps": ["a:1"]})
    with pytest.raises(TypeError, match="cluster is a tf_config.TFConfig.*ClusterSpec"):
        tfdist.ParameterServerStrategy(spec)


@pytest.mark.feature("A placement that is none", "no", "it has no method `place`")
def test_placement_without_place():
    with pytest.raises(TypeError, match="has a method place.*received 'round_robin'"):
        tfdist.ParameterServerStrategy(placement="round_robin")


def test_placement_that_is_a_class():
    with pytest.raises(TypeError, match=r"an object, not a class.*RoundRobin\(\)"):
        tfdist.ParameterServerStrategy(placement=tfdist.RoundRobin)


NEVER_STARTED = """
import tfdist
try:
    tfdist.ParameterServerStrategy(startup_timeout=1.0)
except tfdist.StartupTimeoutError as error:
    print(error)
"""


@pytest.mark.feature("A ps that was never started", "no", "named after a deadline")
def test_ps_that_was_never_started(run_python):
    cluster = launch.local_cluster(num_ps=1, num_workers=1)
    result = run_python(NEVER_STARTED, config=tf_config.TFConfig(cluster, CHIEF))
    words = result.stdout
    assert words.startswith("no server answered within 1 s for "), result.stderr
    for task in "ps:0", "worker:0":
        address = cluster.address(tf_config.Task.parse(task))
        assert f"{task} at {address}" in words
    assert "python -m launch.task" in words
