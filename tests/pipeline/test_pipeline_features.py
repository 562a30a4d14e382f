"""What Keras users do with a model, in a pipeline, and what a pipeline refuses."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.research.model_parallel.estimated import estimate_layers

from ..support.raising import raises
from .pipeline_cases import assert_close, logical_devices  # noqa: F401

pytestmark = pytest.mark.own_process

layers = keras.layers


def built(make, strategy=None, optimizer="adam", loss="mse", **compiled):
    keras.utils.set_random_seed(5)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        model.compile(
            optimizer() if callable(optimizer) else optimizer, loss, **compiled
        )
    return model


def both(make, fit, strategy, **compiled):
    """Trains alone and in a pipeline, and compares weights and history."""
    found = []
    for each in (None, strategy):
        model = built(make, each, **compiled)
        history = fit(model)
        found.append((model.get_weights(), history))
    (weights, history), (ours, of_ours) = found
    assert_close(ours, weights, rtol=1e-4, atol=1e-5)
    for name in history:
        np.testing.assert_allclose(of_ours[name], history[name], rtol=1e-4, atol=1e-6)


def dense(*sizes):
    def make():
        return keras.Sequential(
            [
                keras.Input((4,)),
                *(layers.Dense(n, "relu") for n in sizes),
                layers.Dense(1),
            ]
        )

    return make


X = np.random.default_rng(0).normal(size=(18, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


def two_towers():
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    shared = layers.Dense(6, "relu", name="shared")
    a, b = shared(left), shared(right)
    early = layers.Dense(1, name="early")(a)
    late = layers.Dense(1, name="late")(
        layers.Dense(6, "tanh")(layers.multiply([a, b]))
    )
    return keras.Model({"left": left, "right": right}, {"early": early, "late": late})


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_inputs_and_outputs_by_name_with_weights_of_classes_and_examples(schedule):
    def fit(model):
        weight = np.arange(18.0, dtype="float32")
        return model.fit(
            {"left": X, "right": X[::-1]},
            {"early": Y, "late": -Y},
            sample_weight={"early": weight, "late": weight[::-1]},
            validation_data=({"left": X, "right": X}, {"early": Y, "late": Y}),
            **{"batch_size": 7, "epochs": 2, "shuffle": False, "verbose": 0},
        ).history

    both(
        two_towers,
        fit,
        tfdist.research.PipelineStrategy(2, 3, schedule),
        loss={"early": "mse", "late": "huber"},
        loss_weights={"early": 0.3, "late": 1.0},
        metrics={"early": "mae", "late": [keras.metrics.R2Score()]},
    )


@pytest.mark.parametrize(
    "distributed",
    [
        lambda strategy, data: strategy.experimental_distribute_dataset(data),
        lambda strategy, data: strategy.distribute_datasets_from_function(
            lambda context: data.shard(
                context.num_input_pipelines, context.input_pipeline_id
            )
        ),
    ],
)
def test_data_that_the_strategy_distributes_with_weights_of_classes(distributed):
    strategy = tfdist.research.PipelineStrategy(2, 3)
    data = tf.data.Dataset.from_tensor_slices((X, np.arange(18.0) % 3)).batch(7)

    def fit(model):
        is_split = model.distribute_strategy is strategy
        given = distributed(strategy, data) if is_split else data
        return model.fit(
            given,
            class_weight={0: 1.0, 1: 3.0, 2: 0.5},
            validation_data=given,
            epochs=2,
            verbose=0,
        ).history

    both(dense(3), fit, strategy)


def masked():
    words = keras.Input((6,), dtype="int32")
    x = layers.Embedding(9, 5, mask_zero=True)(words)
    x = layers.LSTM(4, return_sequences=True)(x)
    return keras.Model(words, layers.TimeDistributed(layers.Dense(1))(x))


WORDS = np.random.default_rng(2).integers(0, 9, (18, 6)).astype("int32")


def test_a_mask_crosses_cuts_and_counts_in_the_loss_of_the_whole_batch():
    def fit(model):
        y = WORDS[..., None] / 9.0
        return model.fit(
            WORDS, y, batch_size=7, epochs=2, shuffle=False, verbose=0
        ).history

    both(masked, fit, tfdist.research.PipelineStrategy(3, 4))


def test_a_loss_that_does_not_separate_is_that_of_the_whole_batch():
    def greatest(y_true, y_pred):
        return tf.reduce_max(tf.abs(y_true - y_pred))

    def fit(model):
        return model.fit(X, Y, batch_size=9, epochs=2, shuffle=False, verbose=0).history

    both(dense(5, 5), fit, tfdist.research.PipelineStrategy(2, 4), loss=greatest)
    model = built(
        dense(5, 5), tfdist.research.PipelineStrategy(2, 4, "1f1b"), loss=greatest
    )
    with raises(tfdist.research.PipelineError, "1f1b", "gpipe"):
        fit(model)


@pytest.mark.parametrize("recompute", [False, True])
def test_state_of_layers_changes_once_for_each_microbatch(recompute):
    def make():
        return keras.Sequential(
            [keras.Input((4,)), layers.Dense(5), layers.BatchNormalization()]
            + [layers.Dropout(0.5, seed=1), layers.Dense(1)]
        )

    strategy = tfdist.research.PipelineStrategy(2, 3, "gpipe", recompute)
    model = built(make, strategy, optimizer=lambda: keras.optimizers.SGD(0.0))
    alone = built(make, optimizer=lambda: keras.optimizers.SGD(0.0))
    model.train_on_batch(X, Y)
    for start in (0, 6, 12):
        alone.train_on_batch(X[start : start + 6], Y[start : start + 6])
    assert_close(model.get_weights(), alone.get_weights(), rtol=1e-5, atol=1e-6)
    seeds = [
        next(v for v in each.layers[2].variables if "seed" in v.path).numpy()
        for each in (model, alone)
    ]
    np.testing.assert_array_equal(*seeds)


def test_a_model_in_two_stages_goes_on_in_four_and_in_one_process(tmp_path):
    def fit(model, epochs):
        model.fit(X, Y, batch_size=9, epochs=epochs, shuffle=False, verbose=0)

    make = dense(6, 6, 6)
    expected = built(make)
    fit(expected, 3)
    model = built(make, tfdist.research.PipelineStrategy(2, 3))
    fit(model, 2)
    model.save(tmp_path / "model.keras")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    saved = checkpoint.write(str(tmp_path / "checkpoint"))
    for strategy in (tfdist.research.PipelineStrategy(4, 2, "1f1b"), None):
        with strategy.scope() if strategy else contextlib.nullcontext():
            loaded = keras.models.load_model(tmp_path / "model.keras")
        restored = built(make, strategy)
        reader = tf.train.Checkpoint(model=restored, optimizer=restored.optimizer)
        status = reader.read(saved)
        for each in (loaded, restored):
            fit(each, 1)
            pairs = zip(each.get_weights(), expected.get_weights(), strict=True)
            for one, other in pairs:
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        status.assert_existing_objects_matched()


def plan_of(model, placed):
    graph = estimate_layers(model, flops=1e9)
    devices = tuple(tfdist.research.Device(each) for each in ("one", "two"))
    by_node = {node: placed.get(node.partition("#")[0], "one") for node in graph.order}
    return tfdist.research.LayerPlan(
        graph, devices, tfdist.research.Links(1e9), by_node
    )


def towers():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    left = layers.Dense(6, "relu", name="left")(a)
    right = layers.Dense(6, "relu", name="right")(b)
    score = layers.Dense(1, name="score")(layers.add([left, right], name="both") * 2.0)
    return keras.Model([a, b], score)


def test_a_plan_of_place_layers_says_the_stages():
    plan = plan_of(towers(), {"right": "two", "b": "two"})

    def fit(model):
        options = {"batch_size": 6, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit([X, X[::-1]], Y, **options).history

    strategy = tfdist.research.PipelineStrategy(plan, 3)
    both(towers, fit, strategy)
    # It goes back to the first device, which so has two of three stages.
    one, two = (tf.config.list_logical_devices()[i].name[-5:] for i in range(2))
    assert [each[-5:] for each in strategy.devices] == [one, two, one]
    model = built(towers, strategy)
    assert strategy.stages_of(model) == [["left"], ["right"], ["both", "score"]]
    with raises(tfdist.research.PipelineError, "lacks", "a, b"):
        tfdist.research.PipelineStrategy(plan).stages_of(built(named))
    crossed = {"twice": "one", "between": "two", "end": "two"}
    with raises(tfdist.research.PipelineError, "'twice'", "several stages"):
        tfdist.research.PipelineStrategy(plan_of(shared(), crossed))


def operations():
    x = keras.Input((4,), name="x")
    first = layers.Dense(5, "relu", name="first")(x)
    inner = keras.Input((5,))
    twice = keras.Model(inner, keras.ops.tanh(inner) * 2.0, name="twice")
    summed = twice(first) + keras.ops.sum(first, axis=-1, keepdims=True)
    return keras.Model(x, layers.Dense(1, name="last")(summed))


def test_operations_that_are_no_layers_are_in_stages():
    def fit(model):
        return model.fit(X, Y, batch_size=6, shuffle=False, verbose=0).history

    planned = operations()
    (name,) = [e.name for e in planned.operations if e.name.startswith("sum")]
    # Keras names the operations of the models that are trained otherwise.
    strategy = tfdist.research.PipelineStrategy(plan_of(planned, {name: "two"}), 3)
    both(operations, fit, strategy)
    assert len(strategy.devices) == 3
    keras.utils.clear_session()
    listed = tfdist.research.PipelineStrategy([["first", "twice"], ["sum", "last"]])
    assert listed.stages_of(built(operations))[1] == ["last"]


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(x)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def own_step():
    x = keras.Input((4,))
    return OwnStep(x, layers.Dense(1)(layers.Dense(3)(x)))


def shared():
    x = keras.Input((4,))
    layer = layers.Dense(4, name="twice")
    y = layers.Dense(4, name="between")(layer(x))
    return keras.Model(x, layers.Dense(1, name="end")(layer(y)))


def named():
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, name="a"), layers.Dense(1, name="b")]
    )


@pytest.mark.parametrize(
    ("make", "stages", "compiled", "message"),
    [
        (Own, 2, {}, "a Own, has a call method of its own"),
        (own_step, 2, {}, "has its own train_step"),
        (named, 2, {"run_eagerly": True}, "run_eagerly=True would"),
        (named, 2, {"jit_compile": True}, "jit_compile=True compiles"),
        (named, 3, {}, "stages=3 needs a layer for each stage.*of 2 layers"),
        (named, [["a"], ["c"]], {}, "names 'c', and the model.*layers are a, b"),
        (named, [["a"]], {}, "stages lacks the layers b"),
        (named, [["b"], ["a"]], {}, "data goes from each stage to later ones"),
        (shared, [["twice"], ["between", "end"]], {}, "'twice' of stage 0 is called"),
    ],
)
def test_refused_with_what_to_do(make, stages, compiled, message):
    model = built(make, tfdist.research.PipelineStrategy(stages, 2), **compiled)
    with pytest.raises(tfdist.research.PipelineError, match=message):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": 5}, "5 stages need as many devices"),
        ({"devices": "/cpu:0"}, "devices must be a list of names"),
        (
            {"devices": ["/cpu:0", "/cpu:9"]},
            "devices must be of this process.*received '/cpu:9'",
        ),
        ({"recompute": "yes"}, "recompute must be True or False"),
        ({"replicas": 0}, "replicas must be an int"),
        ({"replicas": True}, "replicas must be an int"),
        ({"replicas": 1.5}, "replicas must be an int"),
        ({"replicas": "2"}, "replicas must be an int"),
        ({"replicas": 5}, "replicas=5 needs as many devices"),
        ({"replicas": 2, "max_staleness": 1}, "needs max_staleness=0"),
        ({"max_staleness": -1}, "max_staleness must be a number of steps"),
        ({"max_staleness": 1.0}, "max_staleness must be a number of steps"),
        ({"max_staleness": True}, "max_staleness must be a number of steps"),
        ({"max_staleness": "1"}, "max_staleness must be a number of steps"),
    ],
)
def test_arguments_are_refused_in_words(arguments, message):
    with pytest.raises(tfdist.research.PipelineError, match=message):
        tfdist.research.PipelineStrategy(**{"stages": 2, **arguments})


class Counting(layers.Layer):
    """Its output depends on how often it was called before."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
        return x * self.scale * (1 + self.calls)


def test_what_is_computed_again_begins_with_the_state_of_the_first_time():
    found = []
    for recompute in (False, True):
        strategy = tfdist.research.PipelineStrategy(2, 4, recompute=recompute)
        model = built(
            lambda: keras.Sequential([keras.Input((4,)), Counting(), layers.Dense(1)]),
            strategy,
            lambda: keras.optimizers.SGD(0.01),
        )
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        found.append(model.get_weights())
    assert_close(*found, rtol=1e-5)


class SettingItsWeight(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        self.scale.assign(self.scale * 0.5)
        return x * self.scale


class DrawingByItself(layers.Layer):
    def call(self, x):
        return x * tf.random.uniform(tf.shape(x))


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (SettingItsWeight, {"recompute": True}, "assigns its trainable weight"),
        (SettingItsWeight, {"replicas": 2}, "assigns its trainable weight"),
        (DrawingByItself, {"recompute": True}, "Draw by keras.random"),
    ],
)
def test_layers_that_cannot_be_computed_again_or_in_copies_are_refused(
    layer, options, message
):
    model = built(
        lambda: keras.Sequential([keras.Input((4,)), layer(), layers.Dense(1)]),
        tfdist.research.PipelineStrategy(2, 2, **options),
    )
    with pytest.raises(tfdist.research.PipelineError, match=message):
        model.fit(X, Y, verbose=0)
