"""Misuse and unsupported features: rejected before the first step."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import assert_alike, compiled, mlp

import launch
import tf_config
import tfdist
from tfdist.keras.optimizers import optimizers_of, with_wrapped

from ..support.raising import raises

layers = keras.layers
optimizers = keras.optimizers

CHIEF = tf_config.Task("chief", 0)


@pytest.fixture
def refused(strategy, runs_on_workers):
    """Assert that `fit` raises an error with these words before any step runs."""

    def refuse(build, data, words):
        with strategy.scope():
            model = build()
        with runs_on_workers(0), pytest.raises(ValueError, match=words):
            model.fit(*data, batch_size=8, verbose=0)

    return refuse


@pytest.fixture
def as_in_the_table(is_refused, refused, trains):
    """Assert what the test's row says: rejected, or trained like one process."""

    def check(build, data, words, **options):
        if is_refused:
            refused(build, data, words)
        else:
            trains(build, *data, epochs=2, steps=16, **options)

    return check


@pytest.mark.feature(
    "`gradient_accumulation_steps`",
    "no",
    "workers would clear each other's sums",
    rounds="yes",
    synchronous="yes",
)
def test_gradient_accumulation(regression, as_in_the_table):
    as_in_the_table(
        lambda: mlp(optimizer=optimizers.SGD(gradient_accumulation_steps=2)),
        regression,
        "(?s)SGD has gradient_accumulation_steps=2.*lost or counted twice.*larger batch",
    )


@pytest.mark.parameter_server
@pytest.mark.parametrize(
    ("is_raw", "writes"),
    [(False, "two"), (False, "one"), (True, "one"), (False, "kept"), (True, "kept")],
)
def test_gradients_accumulated_by_hand(regression, refused, is_raw, writes):
    class Accumulating(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            [gradient] = tape.gradient(loss, self.trainable_variables)
            self.count.assign_add(1)
            [sums] = self.sums
            if writes == "two":
                sums.assign_add(gradient)
                total = sums
            else:
                total = sums + gradient
            is_full = keras.ops.cast(keras.ops.equal(self.count % 3, 0), "float32")
            self.optimizer.apply([total * is_full / 3], self.trainable_variables)
            sums.assign(gradient if writes == "kept" else total * (1 - is_full))
            return {"loss": loss}

    def build():
        model = Accumulating([keras.Input((4,)), layers.Dense(1, use_bias=False)])
        model.count = model.add_weight((), "zeros", "int32", trainable=False)
        if is_raw:
            model.sums = [tf.Variable(tf.zeros((4, 1)))]
        else:
            model.sums = [model.add_weight((4, 1), "zeros", trainable=False)]
        model.compile("sgd", "mse")
        return model

    name = r"accumulating\w*\.sums\[0\]" if is_raw else r"accumulating\w*/variable\w*"
    what = "adds to {}, and also sets"
    if writes == "kept":
        what = "sets {}, to gradients that it reads for an update"
    words = f"{what.format(name)}.*lost or counted twice.*larger batch"
    refused(build, regression, words)


class PutBack(layers.Dense):
    def call(self, x):
        before = tf.identity(self.kernel.value)
        self.kernel.assign(before * 0.5)
        y = super().call(x)
        self.kernel.assign(before)
        return y


@pytest.mark.parameter_server
@pytest.mark.parametrize(
    "layer",
    [
        PutBack(1),
        pytest.param(
            layers.Dense(1, kernel_constraint=lambda w: keras.ops.where(w > 0, w, 0.1)),
            marks=pytest.mark.steps_write,
        ),
    ],
)
def test_a_weight_that_a_step_sets(regression, refused, layer):
    words = "sets .*kernel, which an optimizer updates"
    refused(lambda: compiled(layer), regression, words)


class Accumulator:
    """What a step of a loop of one's own uses, and what it may do with that."""

    def __init__(self):
        self.count = tf.Variable(0)
        self.sums = tf.Variable(tf.zeros(3), name="sums")
        self.bias = keras.Variable([1.0], name="bias")
        self.optimizer = optimizers.SGD(0.1)
        self.optimizer.build([self.bias])

    def add_and_reset(self):
        self.sums.assign_add(tf.ones(3))
        self.sums.assign(self.sums * tf.cast(self.at_next() > 0, tf.float32))

    def at_next(self):
        self.count.assign_add(1)
        return self.count % 3

    def fill(self):
        self.sums[self.at_next()].assign(1.0)

    def learn(self):
        self.optimizer.apply([tf.ones(1)], [self.bias])

    def learn_and_put_back(self):
        before = tf.identity(self.bias.value)
        self.learn()
        self.bias.assign(before * 0.5)

    def learn_and_clip(self):
        self.learn()
        self.bias.assign(keras.ops.clip(self.bias, -1.0, 1.0))


@pytest.mark.parameter_server
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "add_and_reset",
            "adds to sums, and also sets.*coordinator.join.*larger batch",
        ),
        ("fill", "sets sums, at a position that it counts.*larger batch"),
        ("learn_and_put_back", "sets bias, which an optimizer updates"),
        ("learn_and_clip", None),
    ],
)
@pytest.mark.parametrize("is_loop", [False, True])
def test_a_step_of_a_loop_of_ones_own(strategy, name, words, is_loop):
    with strategy.scope():
        accumulator = Accumulator()
    step = getattr(accumulator, name)

    @tf.function
    def train():
        if is_loop:
            for _ in tf.range(2):
                strategy.run(step)
        else:
            strategy.run(step)
        # What the function before it has updated is no state.
        strategy.run(accumulator.at_next)

    if words is None:
        strategy.coordinator.schedule(train)
        strategy.coordinator.join()
        np.testing.assert_allclose(accumulator.bias, [0.8 if is_loop else 0.9])
        return
    with pytest.raises(ValueError, match=words):
        strategy.coordinator.schedule(train)
    assert accumulator.count.numpy() == 0


@pytest.mark.parameter_server
@pytest.mark.parametrize("resets", ["in_run", "plainly", "never"])
def test_a_function_of_a_loop_of_ones_own_is_checked_as_a_whole(strategy, resets):
    with strategy.scope():
        sums = tf.Variable(0.0, name="sums", trainable=False)
        count = tf.Variable(0, trainable=False)
        weight = tf.Variable(0.0)

    def add():
        sums.assign_add(1.0)
        count.assign_add(1)

    def flush():
        weight.assign_sub(sums)
        if resets != "never":
            sums.assign(0.0)

    @tf.function
    def train():
        strategy.run(add)
        if count % 4 == 0:
            if resets == "plainly":
                flush()
            else:
                strategy.run(flush)

    words = "adds to sums, and also sets or resets"
    refused = pytest.raises(ValueError, match=words)
    with contextlib.nullcontext() if resets == "never" else refused:
        for _ in range(8):
            strategy.coordinator.schedule(train)
    # Else TensorFlow would not warn of a step on the chief any more.
    assert not strategy.extended._being_scheduled
    strategy.coordinator.join()
    assert count.numpy() == (8 if resets == "never" else 0)


@pytest.mark.parameter_server
def test_functions_of_a_loop_of_ones_own_are_checked_apart(strategy):
    """One that sets a weight between steps is no part of the steps that learn."""
    with strategy.scope():
        accumulator = Accumulator()
    learn = tf.function(lambda: strategy.run(accumulator.learn))
    halve = tf.function(lambda: strategy.run(lambda: accumulator.bias.assign([0.5])))
    both = [each.get_concrete_function() for each in (learn, halve)]
    for each in both:
        strategy.coordinator.schedule(each)
        strategy.coordinator.join()
    np.testing.assert_allclose(accumulator.bias, [0.5])

    @tf.function
    def train():
        learn()
        halve()

    with pytest.raises(ValueError, match="sets bias, which an optimizer updates"):
        strategy.coordinator.schedule(train)


@pytest.mark.in_gate
@pytest.mark.feature(
    "`run_eagerly=True`", "no", "it would run on the chief", synchronous="yes"
)
def test_run_eagerly(regression, as_in_the_table):
    words = "run_eagerly=True would run every step on the chief"
    as_in_the_table(lambda: mlp(run_eagerly=True), regression, words)


@pytest.mark.feature(
    "`jit_compile=True`",
    "yes",
    rounds=("no", "steps wait for their turn in a loop"),
    synchronous=("no", "replicas exchange within a step"),
)
def test_jit_compile(regression, as_in_the_table):
    words = "jit_compile=True.*jit_compile=False"
    as_in_the_table(lambda: mlp(jit_compile=True), regression, words)


@pytest.mark.parameter_server
@pytest.mark.steps_write
@pytest.mark.parametrize("what", ["uses variables", "draws", "NumpyFunction|PyFunc"])
def test_xla_cannot_compile_what_a_worker_computes(strategy, regression, what):
    class Layer(layers.Layer):
        def call(self, x):
            if what == "uses variables":
                return tf.cond(tf.size(x) > 0, lambda: dense(x), lambda: x[:, :1])
            if what == "draws":
                return tf.cond(
                    tf.size(x) > 0, lambda: x + tf.random.normal([]), lambda: x
                )
            return tf.ensure_shape(tf.numpy_function(np.abs, [x], x.dtype), x.shape)

    with strategy.scope():
        dense = layers.Dense(1)
        dense.build((None, 4))
        own = Layer()
        own.dense = dense
        model = keras.Sequential([keras.Input((4,)), own, layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
    before = model.get_weights()
    words = f"({what})(.|\n)*jit_compile=False"
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=words):
        model.fit(*regression, verbose=0)
    assert_alike(model.get_weights(), before)


@pytest.mark.feature(
    "`LossScaleOptimizer`",
    "no",
    "workers could make the scale 0; use mixed_bfloat16",
    rounds="yes",
    synchronous="yes",
)
def test_loss_scale_optimizer(regression, as_in_the_table):
    as_in_the_table(
        lambda: mlp(optimizer=optimizers.LossScaleOptimizer(optimizers.SGD())),
        regression,
        "LossScaleOptimizer.*mixed_bfloat16",
    )


@pytest.mark.in_gate
@pytest.mark.feature(
    "`mixed_float16`",
    "no",
    "Keras uses `LossScaleOptimizer` for it",
    rounds="yes",
    synchronous="yes",
)
def test_mixed_float16(regression, as_in_the_table):
    def build():
        dense = layers.Dense(1, dtype="mixed_float16")
        model = keras.Sequential([keras.Input((4,)), dense], name="half")
        model.dtype_policy = keras.DTypePolicy("mixed_float16")
        model.compile(optimizers.SGD(0.001), "mse")
        return model

    # float16 keeps 11 bits.
    words = "LossScaleOptimizer.*mixed_bfloat16"
    as_in_the_table(build, regression, words, rtol=0.01)


@pytest.mark.feature(
    "`ema_overwrite_frequency`",
    "no",
    "it would erase other workers' updates",
    rounds="yes",
    synchronous="yes",
)
def test_ema_overwrite_frequency(regression, as_in_the_table):
    as_in_the_table(
        lambda: mlp(optimizer=optimizers.SGD(use_ema=True, ema_overwrite_frequency=3)),
        regression,
        "ema_overwrite_frequency=3.*Set it to None",
    )


@pytest.mark.feature(
    "`ScheduleFreeAdamW`",
    "no",
    "it needs a consistent read of two variables",
    rounds="yes",
    synchronous="yes",
)
@pytest.mark.skipif(
    not hasattr(optimizers, "ScheduleFreeAdamW"), reason="Keras has it since 3.14"
)
def test_schedule_free_adamw(regression, as_in_the_table):
    def build():
        model = mlp(optimizer=optimizers.ScheduleFreeAdamW())
        # In a step, Keras alone would begin its averages with zeros.
        model.optimizer.build(model.trainable_variables)
        return model

    as_in_the_table(build, regression, "ScheduleFreeAdamW.*Use AdamW")


ANOTHER = {
    "attribute": lambda optimizer: optimizer,
    "list": lambda optimizer: [optimizer],
    "nested": lambda optimizer: {"of": ({"both": [optimizer]},)},
    "wrapped": lambda optimizer: [optimizers.LossScaleOptimizer(optimizer)],
}


@pytest.mark.parameter_server
@pytest.mark.parametrize("where", ANOTHER)
def test_second_optimizer_is_checked(pytestconfig, regression, refused, where):
    if pytestconfig.getoption("strategy") == "rounds":
        pytest.skip("gradients are accumulated in rounds")

    def build():
        model = mlp()
        model.another = ANOTHER[where](optimizers.Adam(gradient_accumulation_steps=4))
        return model

    words = "Adam has gradient_accumulation_steps=4|LossScaleOptimizer"
    refused(build, regression, words)


def test_optimizers_of_a_model_and_of_its_layers():
    class Owner(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    inner = mlp()
    outer, plain = Owner([inner]), keras.Sequential([inner])
    outer.compile("sgd")
    plain.compile("sgd")
    assert optimizers_of(outer) == [outer.optimizer, inner.optimizer]
    assert optimizers_of(plain) == [plain.optimizer]
    outer.of_each = {
        1: (optimizers.Adam(), {optimizers.LossScaleOptimizer(optimizers.SGD())})
    }
    outer.of_each[2] = outer.of_each
    assert [type(each) for each in with_wrapped(outer.of_each)] == [
        *(optimizers.Adam, optimizers.LossScaleOptimizer, optimizers.SGD)
    ]


@pytest.mark.skipif(
    not hasattr(optimizers, "ScheduleFreeAdamW"), reason="Keras has it since 3.14"
)
@pytest.mark.parameter_server
def test_an_optimizer_is_not_known_by_its_name(
    pytestconfig, regression, trains, refused
):
    if pytestconfig.getoption("strategy") == "rounds":
        pytest.skip("it trains in rounds")

    class Derived(optimizers.ScheduleFreeAdamW):
        pass

    refused(lambda: mlp(optimizer=Derived()), regression, "Derived.*Use AdamW")
    other = type("ScheduleFreeAdamW", (optimizers.SGD,), {})
    trains(lambda: mlp(optimizer=other(0.01)), *regression, epochs=1, steps=8)


@pytest.mark.feature(
    "Stateful recurrent layers",
    "no",
    "workers would overwrite the state",
    synchronous=(
        "no",
        "the state has a row per example, and a replica has only some of them",
    ),
)
def test_stateful_rnn(regression, as_in_the_table):
    def build():
        inputs = keras.Input(batch_shape=(8, 4))
        hidden = layers.LSTM(3, stateful=True, name="memory")(
            layers.Reshape((2, 2))(inputs)
        )
        model = keras.Model(inputs, layers.Dense(1)(hidden))
        model.compile("sgd", "mse")
        return model

    words = "'memory' has stateful=True.*Use stateful=False"
    as_in_the_table(build, regression, words)


@pytest.mark.feature(
    "`SpectralNormalization`",
    "no",
    "it would erase other workers' gradients",
    synchronous="yes",
)
def test_spectral_normalization(regression, as_in_the_table):
    as_in_the_table(
        lambda: compiled(layers.SpectralNormalization(layers.Dense(1))),
        regression,
        "SpectralNormalization.*MaxNorm",
    )


@pytest.mark.feature(
    "float8",
    "no",
    "its scales depend on the order of the steps",
    synchronous=("no", "its scales depend on all examples"),
)
def test_float8(regression, as_in_the_table):
    def build():
        model = mlp()
        model.quantize("float8")
        model.compile("sgd", "mse")
        return model

    as_in_the_table(build, regression, "float8.*mixed_bfloat16")


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros", name="value")

    def update_state(self, y, y_pred, sample_weight=None):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(y)))

    def result(self):
        return self.largest + 0


@pytest.mark.in_gate
@pytest.mark.feature(
    "A metric that sets a variable to its maximum",
    "no",
    "it is not a sum over workers",
    synchronous="yes",
)
def test_metric_that_is_no_sum(regression, as_in_the_table):
    words = r"sums over the workers.*maximum.*assign_add"
    as_in_the_table(lambda: mlp(metrics=[Largest()]), regression, words)


@pytest.mark.feature(
    "A metric built outside the scope",
    "no",
    "it would lose updates",
    multi_worker="yes",
)
def test_metric_outside(regression, as_in_the_table):
    metrics = [keras.metrics.MeanAbsoluteError(name="elsewhere") for _ in range(2)]
    as_in_the_table(
        lambda: mlp(metrics=[metrics.pop()]),
        regression,
        r"outside of the strategy's scope: elsewhere/.*with strategy.scope\(\)",
    )


@pytest.mark.feature("An optimizer built outside the scope", "no", "like a metric")
def test_optimizer_outside(regression, refused):
    optimizer = optimizers.SGD()
    words = "optimizer SGD was created outside of .* scope"
    refused(lambda: mlp(optimizer=optimizer), regression, words)


@pytest.mark.feature("`compile` outside the scope", "no", "like a metric")
def test_compile_outside(strategy, regression, refused):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    refused(lambda: model, regression, r"call model.compile\(...\), inside")


@pytest.mark.parameter_server
@pytest.mark.feature(
    "A custom step outside `strategy.run`", "no", "the error says how to schedule it"
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

    with raises(RuntimeError, "strategy.run(step"):
        strategy.coordinator.schedule(step, args=(tf.constant(regression[0]),))


@pytest.mark.feature(
    "A layer built outside the scope", "no", "like a metric", multi_worker="yes"
)
def test_layer_outside(regression, as_in_the_table):
    def built():
        layer = layers.Dense(1, kernel_initializer="ones", name="elsewhere")
        layer.build((None, 4))
        return layer

    ready = [built(), built()]
    words = "outside of the strategy's scope: .*elsewhere/kernel"
    as_in_the_table(lambda: compiled(ready.pop()), regression, words)


@pytest.mark.in_gate
@pytest.mark.feature(
    "A `tf.Variable` created outside the scope",
    "no",
    "like a metric",
    multi_worker="yes",
)
def test_variable_outside(regression, is_refused, as_in_the_table):
    count = tf.Variable(0.0, name="mine")

    class Counting(keras.Sequential):
        def train_step(self, data):
            count.assign_add(1.0)
            return super().train_step(data)

    def build():
        model = Counting([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    words = "outside of the strategy's scope: (mine|a variable.* made in .*test_ref)"
    as_in_the_table(build, regression, words)
    # Two epochs of a model of the strategy, and of one of plain Keras.
    assert count.numpy() == (0 if is_refused else 2 * 16)


@pytest.mark.parameter_server
def test_a_compiled_function_that_uses_variables(strategy, regression):
    class Compiling(keras.Sequential):
        def train_step(self, data):
            self.error(*data)
            return super().train_step(data)

        @tf.function(jit_compile=True)
        def error(self, x, y):
            return tf.reduce_mean(tf.square(self(x) - y))

    with strategy.scope():
        model = Compiling([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    words = r"made in .*test_refusals.*Remove jit_compile=True"
    with pytest.raises(ValueError, match=words):
        model.fit(*regression, verbose=0)


@pytest.mark.parameter_server
def test_metric_outside_is_refused_by_evaluate(strategy, regression):
    metric = keras.metrics.MeanAbsoluteError(name="elsewhere")
    with strategy.scope():
        model = mlp(metrics=[metric])
    with raises(ValueError, "outside", "elsewhere"):
        model.evaluate(*regression, verbose=0)


CALLS = ("fit", "evaluate", "predict", "train_on_batch", "predict_on_batch")


# What is raised where nobody can catch it is printed, in full.
@pytest.mark.in_gate("fit")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", CALLS)
def test_error_on_a_worker_is_raised(
    request, strategy, regression, is_synchronous, runs_on_workers, call
):
    """The error is short and raised once; the cluster then continues to train."""
    x, y = regression
    with strategy.scope():
        model = compiled(
            tfdist.embedding.Embedding(4, 2), layers.Flatten(), layers.Dense(1)
        )
    bad = np.full((64, 4), 9)
    data = (bad,) if call.startswith("predict") else (bad, y)
    options = {} if call.endswith("batch") else {"batch_size": 8, "verbose": 0}
    words = r"is not in \[0, 4\)" if is_synchronous else "from 0 to 3"
    with pytest.raises(tf.errors.InvalidArgumentError, match=words) as raised:
        getattr(model, call)(*data, **options)
    where = "" if is_synchronous else " on worker"
    assert raised.value.message.startswith(f"a step failed{where}")
    assert raised.value.message.count("\n") <= 1
    if is_synchronous:  # Some replicas may have ended the step that failed on one.
        request.getfixturevalue("trained_models").forget()
    with strategy.scope():
        model = mlp()
    with runs_on_workers(8):
        model.fit(x, y, batch_size=8, verbose=0)


@pytest.mark.in_gate
def test_error_of_a_batch_that_was_not_waited_for_is_not_kept(strategy, regression):
    class Stop(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            raise KeyError("stopped")

    with strategy.scope():
        model = compiled(
            tfdist.embedding.Embedding(4, 2), layers.Flatten(), layers.Dense(1)
        )
    ids = np.zeros((64, 4))
    ids[-1] = 9
    with raises(KeyError, "stopped"):
        model.predict(ids, batch_size=8, verbose=0, callbacks=[Stop()])
    model.fit(np.zeros((64, 4)), regression[1], batch_size=8, verbose=0)


@pytest.mark.parameter_server
@pytest.mark.feature(
    "A second strategy in one process", "no", "TensorFlow connects once"
)
def test_second_strategy(strategy, servers):
    with raises(RuntimeError, "already"):
        tfdist.ParameterServerStrategy(servers.tf_config)


# The rest is refused before the process connects, so that the shared strategy stays.


def config_of(task, **jobs):
    return tf_config.TFConfig(tf_config.Cluster.from_hosts(**jobs), task)


@pytest.mark.parameter_server
@pytest.mark.feature("No TF_CONFIG", "no", "the error says how to start a cluster")
def test_no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with raises(tf_config.ClusterError, "TF_CONFIG", "not set"):
        tfdist.ParameterServerStrategy()


@pytest.mark.parameter_server
@pytest.mark.feature(
    "A strategy on a ps or a worker", "no", "only the chief creates one"
)
@pytest.mark.parametrize("task", ["ps:0", "worker:0"])
def test_strategy_on_a_server(task):
    config = config_of(tf_config.Task.parse(task), chief="a:1", ps="a:2", worker="a:3")
    words = f"runs on the chief alone; this task is {task}.*python -m tfdist.server"
    words += ".* Type: tfdist local --num_ps=1 --num_workers=1 --program=coordinator "
    with pytest.raises(tf_config.ClusterError, match=words):
        tfdist.ParameterServerStrategy(config)


@pytest.mark.parameter_server
@pytest.mark.feature(
    "A cluster without a ps", "no", "there is nowhere to put variables"
)
def test_cluster_without_ps():
    config = config_of(CHIEF, chief="a:1", worker="a:3")
    words = "needs a cluster with a ps.*received the jobs chief, worker"
    words += r"\. Type: tfdist local --num_ps=2 --num_workers=1 \S+"
    with pytest.raises(tf_config.ClusterError, match=words):
        tfdist.ParameterServerStrategy(config)


@pytest.mark.parameter_server
@pytest.mark.feature(
    "A `tf.train.ClusterSpec` as the cluster", "no", "it does not name this task"
)
def test_cluster_of_another_type():
    spec = tf.train.ClusterSpec({"ps": ["a:1"]})
    with raises(TypeError, "cluster_resolver", "ClusterSpec"):
        tfdist.ParameterServerStrategy(spec)


@pytest.mark.parameter_server
@pytest.mark.feature(
    "An object that is not a placement", "no", "it has no method `place`"
)
def test_placement_without_place():
    with raises(TypeError, "place", "received 'round_robin'"):
        tfdist.ParameterServerStrategy(placement="round_robin")


@pytest.mark.parameter_server
def test_placement_in_the_place_of_a_partitioner():
    with raises(TypeError, "partitioner", "BestFit"):
        tfdist.ParameterServerStrategy(None, tfdist.BestFit())


@pytest.mark.parameter_server
def test_placement_that_is_a_class():
    with raises(TypeError, "class", "RoundRobin()"):
        tfdist.ParameterServerStrategy(placement=tfdist.RoundRobin)


NEVER_STARTED = """
import tfdist
try:
    tfdist.ParameterServerStrategy(startup_timeout=1.0)
except tfdist.errors.StartupTimeoutError as error:
    print(error)
"""


@pytest.mark.parameter_server
@pytest.mark.feature(
    "A ps that was never started", "no", "the error names it after a deadline"
)
def test_ps_that_was_never_started(run_python):
    cluster = launch.local_cluster(num_ps=1, num_workers=1)
    result = run_python(NEVER_STARTED, config=tf_config.TFConfig(cluster, CHIEF))
    words = result.stdout
    assert words.startswith("no server answered within 1 s for "), result.stderr
    for task in "ps:0", "worker:0":
        address = cluster.address(tf_config.Task.parse(task))
        assert f"{task} at {address}" in words
    assert "python -m launch.task" in words


@pytest.mark.parameter_server
def test_a_fixed_number_of_rows_and_a_smaller_last_batch(strategy, regression):
    class Noisy(keras.Sequential):
        def train_step(self, data):
            x, y = data
            return super().train_step((x + tf.random.normal((24, 4)), y))

    with strategy.scope():
        model = Noisy([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    words = r"(?s)\[16,.\] vs\. \[24,.\].*the last one may have fewer"
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        model.fit(*regression, batch_size=24, verbose=0)
