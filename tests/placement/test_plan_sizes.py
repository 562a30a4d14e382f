import gc
import json
import math
import random
import re
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import VariableSpec
from tfdist.planning.model import plan
from tfdist.planning.planner import plan_variables
from tfdist.planning.sizes import weights_of

from ..support.raising import raises

layers = keras.layers


def compiled(model, *arguments, **kwargs):
    model.compile(*arguments, **kwargs)
    return model


def cnn(optimizer="adam", **compile_args):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(50, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    compile_args.setdefault("loss", "sparse_categorical_crossentropy")
    if "metrics" not in compile_args:
        top = keras.metrics.SparseTopKCategoricalAccuracy(3)
        compile_args["metrics"] = ["accuracy", top]
    return compiled(model, optimizer, **compile_args)


def unnumbered(name: str) -> str:
    return re.sub(r"_\d+(?=[/_]|$)", "", name)


def all_of(weights) -> list[tuple]:
    """The variables created for these weights, slots included."""
    return [
        (unnumbered(name), each.spec.shape, each.spec.dtype)
        for each in weights
        for name in (each.spec.name, *each.slots)
    ]


def without(variables, earlier) -> list:
    left, new = Counter(earlier), []
    for each in variables:
        if left[each]:
            left[each] -= 1
        else:
            new.append(each)
    return new


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(),
    "momentum": lambda: keras.optimizers.SGD(momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(),
    "amsgrad, ema": lambda: keras.optimizers.Adam(amsgrad=True, use_ema=True),
    "Adagrad": lambda: keras.optimizers.Adagrad(),
    "Adafactor": lambda: keras.optimizers.Adafactor(),
    "Ftrl": lambda: keras.optimizers.Ftrl(),
    "schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.CosineDecay(0.1, 100)
    ),
}


@pytest.mark.cluster
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_fit_creates_on_the_ps_is_what_is_predicted(strategy, optimizer):
    def build():
        return cnn(OPTIMIZERS[optimizer]())

    predicted = weights_of(build)
    gc.collect()
    before = strategy.placement_report().variables
    with strategy.scope():
        model = build()
    data = np.zeros((8, 8, 8, 1), "float32"), np.zeros(8, "int64")
    model.fit(*data, batch_size=8, verbose=0)
    new = without(strategy.placement_report().variables, before)
    created = [(unnumbered(v.spec.name), v.spec.shape, v.spec.dtype) for v in new]
    assert Counter(created) == Counter(all_of(predicted))
    slots = {unnumbered(slot) for each in predicted for slot in each.slots}
    asked_for = [unnumbered(each.spec.name) for each in predicted]
    assert [name for name, *_ in created if name not in slots] == asked_for
    assert sum(v.spec.size_bytes for v in new) == sum(w.memory for w in predicted)


def test_variables_come_in_the_order_of_creation():
    weights = weights_of(lambda: cnn(metrics=["accuracy"]))
    names = [unnumbered(each.spec.name) for each in weights]
    normalized = ("gamma", "beta", "moving_mean", "moving_variance")
    assert names == [
        "seed_generator/seed_generator_state",
        *("sequential/conv2d/kernel", "sequential/conv2d/bias"),
        *(f"sequential/batch_normalization/{each}" for each in normalized),
        *("sequential/dense/kernel", "sequential/dense/bias") * 2,
        *("adam/iteration", "adam/learning_rate"),
        *("loss/total", "loss/count", "accuracy/total", "accuracy/count"),
    ]


def test_weights_have_slots_and_can_be_split_and_nothing_else_can():
    weights = {unnumbered(each.spec.name): each for each in weights_of(cnn)}
    kernel = weights["sequential/conv2d/kernel"]
    assert kernel.spec.shape == (3, 3, 1, 4)
    assert kernel.divisible
    assert [unnumbered(slot) for slot in kernel.slots] == [
        "adam/sequential_conv2d_kernel_momentum",
        "adam/sequential_conv2d_kernel_velocity",
    ]
    mean = weights["sequential/batch_normalization/moving_mean"]
    assert mean.slots == ()
    for name in ("adam/iteration", "loss/total", "seed_generator/seed_generator_state"):
        assert not weights[name].divisible
        assert weights[name].slots == ()


def test_no_variable_is_allocated(run_program):
    done = run_program("plan_without_allocating.py")
    assert done.returncode == 0, done.stderr
    planned, resident, traced = json.loads(done.stdout)
    assert planned["vgg16"] == pytest.approx(3 * 4 * 138_357_544, rel=1e-6)
    assert planned["table"] == pytest.approx(2 * 4 * 20_000_000 * 16, rel=1e-6)
    # VGG16's largest kernel alone weighs 411 MB; Keras's own code is loaded meanwhile.
    assert resident < 200e6
    assert traced < 100e6


@pytest.mark.not_in_gate
def test_planning_leaves_no_trace():
    initialize = keras.Variable._initialize
    add_slot = keras.optimizers.Optimizer.add_variable_from_reference
    random.seed(5)
    np.random.seed(5)
    wanted = random.random(), np.random.rand()
    random.seed(5)
    np.random.seed(5)
    weights_of(cnn)
    assert (random.random(), np.random.rand()) == wanted
    assert keras.Variable._initialize is initialize
    assert keras.optimizers.Optimizer.add_variable_from_reference is add_slot
    assert tf.executing_eagerly()
    model = cnn()
    data = np.zeros((8, 8, 8, 1), "float32"), np.zeros(8, "int64")
    model.fit(*data, batch_size=8, verbose=0)
    assert int(model.optimizer.iterations) == 1


def test_variables_of_tensorflow_are_found_and_stay_whole():
    class Scaled(layers.Layer):
        def __init__(self):
            super().__init__()
            self.scale = tf.Variable(tf.ones((1000, 7)), name="scale")

        def call(self, x):
            return x * tf.reduce_sum(self.scale)

    def build():
        return compiled(keras.Sequential([keras.Input((2,)), Scaled()]), "sgd", "mse")

    scale = next(each for each in weights_of(build) if "scale" in each.spec.name)
    assert scale.spec == VariableSpec("scale", (1000, 7), "float32", 4)
    assert not scale.divisible


@pytest.mark.not_in_gate
def test_an_optimizer_for_a_loop_of_your_own():
    def build():
        inputs = keras.Input((4,))
        return keras.Model(inputs, layers.Dense(3, name="out")(inputs))

    for optimizer in ("adam", keras.optimizers.Adam(0.1), "Adam"):
        weights = weights_of(build, optimizer=optimizer)
        kernel, bias, *rest = weights
        assert kernel.spec.name.endswith("out/kernel")
        assert len(kernel.slots) == len(bias.slots) == 2
        assert [each.spec.name.split("/")[1] for each in rest] == [
            "iteration",
            "learning_rate",
        ]
    assert len(weights_of(build, optimizer="sgd")[0].slots) == 0


class Unbuilt(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = layers.Dense(3)

    def call(self, x):
        return self.out(x)


def unbuilt():
    return compiled(Unbuilt(), "adam", "mse", metrics=["mae"])


@pytest.mark.not_in_gate
@pytest.mark.parametrize(
    "batch",
    [
        (np.zeros((2, 5), "float32"), np.zeros((2, 3), "float32")),
        (tf.TensorSpec([None, 5]), tf.TensorSpec([None, 3])),
        (keras.KerasTensor((None, 5)), keras.KerasTensor((None, 3))),
    ],
)
def test_a_model_that_is_not_built_is_built_by_a_batch(batch):
    weights = weights_of(unbuilt, batch=batch)
    kernel = next(each for each in weights if each.spec.name.endswith("/kernel"))
    assert kernel.spec.shape == (5, 3)
    assert len(kernel.slots) == 2
    assert any("mean_absolute_error" in each.spec.name for each in weights)


def test_a_batch_builds_a_model_for_a_loop_of_your_own():
    batch = (tf.TensorSpec([None, 5]),)
    weights = weights_of(Unbuilt, optimizer="adam", batch=batch)
    assert weights[0].spec.shape == (5, 3)
    assert len(weights[0].slots) == 2


def test_a_model_that_is_called_on_an_array():
    def build():
        model = unbuilt()
        model(np.zeros((1, 5), "float32"))
        return model

    batch = (tf.TensorSpec([None, 5]), tf.TensorSpec([None, 3]))
    weights = weights_of(build, batch=batch)
    assert weights[0].spec.shape in {(), (5, 3)}
    assert (5, 3) in {each.spec.shape for each in weights}


def two_outputs():
    inputs = keras.Input((4,))
    outputs = {
        "label": layers.Dense(7, activation="softmax", name="label")(inputs),
        "value": layers.Dense(1, name="value")(inputs),
    }
    loss = {"label": "sparse_categorical_crossentropy", "value": "mse"}
    metrics = {"label": ["accuracy"], "value": ["mae"]}
    return compiled(keras.Model(inputs, outputs), "adam", loss, metrics=metrics)


def test_targets_of_several_outputs_follow_from_their_losses():
    names = [each.spec.name for each in weights_of(two_outputs)]
    metrics = [name for name in names if name.endswith("/total")]
    assert len(metrics) == 5  # the loss, one for each output, and two metrics


@pytest.mark.not_in_gate
def test_lookups_are_of_the_variables_that_match():
    def build():
        words = layers.Embedding(1000, 8, name="words")
        model = keras.Sequential([keras.Input((3,)), words, layers.Dense(5)])
        return compiled(model, "sgd", "mse")

    weights = weights_of(build, lookups={"*/words/embeddings": 30})
    assert {each.lookups for each in weights} == {None, 30}
    assert weights[0].traffic == 2 * 30 * 8 * 4
    for end in ("words/*", "word*/embeddings", "embeddings", "words/embeddings"):
        assert weights_of(build, lookups={end: 30})[0].lookups == 30
    with raises(ValueError, "'ords/*'"):
        weights_of(build, lookups={"ords/*": 30})
    with raises(ValueError, "lookups", "received -1"):
        weights_of(build, lookups={"*": -1})


def table_of(layer):
    def build():
        inputs = keras.Input((3,), dtype="int32")
        outputs = layers.Flatten()(layer()(inputs))
        return compiled(keras.Model(inputs, layers.Dense(1)(outputs)), "adam", "mse")

    return weights_of(build)[0]


@pytest.mark.not_in_gate
def test_tables_are_split_as_their_layers_can():
    mod = table_of(lambda: tfdist.embedding.Embedding(20, 4, partition_strategy="mod"))
    assert mod.dealt
    assert mod.axes == (0,)
    bag = table_of(lambda: tfdist.embedding.EmbeddingBag(20, 4))
    assert (bag.dealt, bag.rows_only, bag.axes) == (False, True, (0,))
    plain = table_of(lambda: tfdist.embedding.Embedding(20, 4))
    assert (plain.dealt, plain.rows_only, plain.axes) == (False, False, (0, 1))


@pytest.mark.not_in_gate
def test_what_is_built_to_be_thrown_away_is_not_planned(tmp_path):
    def build():
        inputs = keras.Input((3, 2))
        cell = layers.Bidirectional(layers.LSTM(4))
        model = keras.Model(inputs, layers.Dense(1)(cell(inputs)))
        return compiled(model, "adam", "mse")

    model = build()
    model.save(tmp_path / "model.keras")
    built = weights_of(build)
    loaded = weights_of(lambda: keras.models.load_model(tmp_path / "model.keras"))
    assert Counter(each.spec.shape for each in built) == Counter(
        each.spec.shape for each in loaded
    )
    assert [len(w.slots) for w in built if w.divisible] == [2] * 8
    assert [len(w.slots) for w in loaded if w.divisible] == [2] * 8
    plan = plan_variables(built, 2)
    assert sum(plan.bytes_per_ps) == sum(each.memory for each in loaded)


def test_what_is_dropped_and_has_no_like_is_planned():
    def build():
        layers.Dense(77).build((None, 3))
        return cnn()

    assert (3, 77) in {each.spec.shape for each in weights_of(build)}


def test_a_model_is_planned():
    planned = plan(cnn, 2, balance="both", target=1.1)
    assert planned.num_ps == 2
    assert planned.target == 1.1
    assert planned.balance == "both"
    assert [v.weight.spec.shape for v in planned.variables] == [
        each.spec.shape for each in weights_of(cnn)
    ]
    assert planned.traffic_imbalance <= 1.1


def not_compiled():
    return keras.Sequential([keras.Input((4,)), layers.Dense(3)])


def fails():
    raise KeyError("of the user's own")


@pytest.mark.parametrize(
    ("build", "kwargs", "error", "message"),
    [
        (cnn(), {}, TypeError, "build_model must be a function"),
        (lambda: 3, {}, TypeError, "returns a keras.Model; <lambda> returned 3"),
        (not_compiled, {}, ValueError, "must be compiled: compile it in build_model"),
        (cnn, {"optimizer": "adam"}, ValueError, "compiled with an optimizer already"),
        (unbuilt, {}, ValueError, r"must be built.*batch=\(x, y\)"),
        (
            lambda: cnn(loss="mse", metrics=[]),
            {"batch": (np.zeros((2, 8, 8, 1)), np.zeros((3, 4)))},
            ValueError,
            "cannot be built with this batch",
        ),
        (fails, {}, KeyError, "of the user's own"),
        (cnn, {"lookups": 5}, TypeError, "lookups has the rows .* received 5"),
        (cnn, {"lookups": {3: 5}}, TypeError, "a pattern .* received 3"),
        (cnn, {"batch": 5}, TypeError, r"\(x, y\), of arrays .* received 5"),
    ],
)
def test_what_cannot_be_measured_is_refused(build, kwargs, error, message):
    with pytest.raises(error, match=message):
        weights_of(build, **kwargs)


@pytest.mark.not_in_gate
def test_sizes_of_a_model_of_keras_applications():
    def build():
        model = keras.applications.MobileNetV2(weights=None)
        return compiled(model, "sgd", "categorical_crossentropy")

    weights = [each for each in weights_of(build) if each.divisible]
    assert sum(math.prod(each.spec.shape) for each in weights) == 3_538_984


def test_a_layer_without_a_seed_works_after_a_plan():
    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x))

    def build_model():
        model = keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(1)])
        return compiled(model, "sgd", "mse")

    weights_of(build_model)
    # Not `fit`, which needs the devices that the process had before it joined a cluster.
    assert build_model()(np.ones((8, 4))).shape == (8, 1)
