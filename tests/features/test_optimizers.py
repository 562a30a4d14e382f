"""Optimizers and precision."""

import keras
import pytest
import tensorflow as tf
from models import KERAS, assert_alike, case, compiled, mlp

optimizers = keras.optimizers
STEPS = 8

OWN_VALUE = pytest.mark.sets_own_value


RULES = [
    case(lambda: optimizers.SGD(0.05), "SGD", "`SGD`"),
    case(lambda: optimizers.SGD(0.01, momentum=0.9), "momentum", "`SGD(momentum=...)`"),
    case(
        lambda: optimizers.SGD(0.01, momentum=0.9, nesterov=True),
        "nesterov",
        "`SGD(nesterov=True)`",
    ),
    case(
        lambda: optimizers.SGD(0.02, momentum=0.5),
        "low-momentum",
        "A momentum below 1 - 1/(2 x workers)",
        "approximate",
        "for rows of an embedding, the last writer wins",
        synchronous="yes",
    ),
    case(lambda: optimizers.Adam(0.02), "Adam", "`Adam`"),
    case(
        lambda: optimizers.Adam(0.02, amsgrad=True),
        "amsgrad",
        "`Adam(amsgrad=True)`",
        "approximate",
        "for rows of an embedding, the last writer wins for the maximum",
        synchronous="yes",
    ),
    case(lambda: optimizers.AdamW(0.02), "AdamW", "`AdamW`"),
    case(lambda: optimizers.RMSprop(0.02), "RMSprop", "`RMSprop`"),
    case(
        lambda: optimizers.RMSprop(0.002, momentum=0.9, centered=True),
        "RMSprop-centered",
        "`RMSprop(momentum=..., centered=True)`",
    ),
    case(lambda: optimizers.Adagrad(0.1), "Adagrad", "`Adagrad`"),
    case(lambda: optimizers.Adadelta(5.0), "Adadelta", "`Adadelta`"),
    case(
        lambda: optimizers.Adamax(0.02),
        "Adamax",
        "`Adamax`",
        "approximate",
        "for rows of an embedding, the last writer wins for the norm",
        synchronous="yes",
    ),
    case(
        lambda: optimizers.Nadam(0.02),
        "Nadam",
        "`Nadam`",
        "approximate",
        "the last writer wins for the product of the momentum schedule",
        synchronous="yes",
        marks=[
            OWN_VALUE(
                r"(^|/)variable(_\d+)?$",
                "a product: an increment could make it negative",
            )
        ],
    ),
    case(
        lambda: optimizers.Ftrl(0.5),
        "Ftrl",
        "`Ftrl`",
        "approximate",
        "for rows of an embedding, sums are exact, and the last writer wins for "
        "the weights computed from them",
        synchronous="yes",
    ),
    case(lambda: optimizers.Lion(0.01), "Lion", "`Lion`"),
    case(lambda: optimizers.Lamb(0.05), "Lamb", "`Lamb`"),
    case(
        lambda: optimizers.Adafactor(0.1),
        "Adafactor",
        "`Adafactor`",
        "approximate",
        "the last writer wins for the factored second moments",
        synchronous="yes",
        marks=[OWN_VALUE("^adafactor", "an average whose decay depends on the step")],
    ),
    case(
        lambda: optimizers.Muon(0.01),
        "Muon",
        "`Muon`",
        marks=[
            pytest.mark.skipif(
                KERAS < (3, 13), reason="Keras has it for TensorFlow since 3.13"
            )
        ],
    ),
]


OPTIONS = [
    case(
        lambda: optimizers.SGD(0.1, clipnorm=0.5),
        "clipnorm",
        "`clipnorm`",
        "approximate",
        "the gradients of an id that a batch repeats are summed first",
        synchronous="yes",
    ),
    case(
        lambda: optimizers.SGD(0.05, clipvalue=0.1),
        "clipvalue",
        "`clipvalue`",
        "approximate",
        "the gradients of an id that a batch repeats are summed first",
        synchronous="yes",
    ),
    case(
        lambda: optimizers.SGD(0.1, global_clipnorm=0.5),
        "global_clipnorm",
        "`global_clipnorm`",
        "approximate",
        "the gradients of an id that a batch repeats are summed first",
        synchronous="yes",
    ),
    case(
        lambda: optimizers.SGD(0.05, weight_decay=0.1), "weight_decay", "`weight_decay`"
    ),
    case(
        lambda: optimizers.SGD(0.05, loss_scale_factor=64.0),
        "loss_scale_factor",
        "`loss_scale_factor`",
    ),
    case(
        lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.05, 4, 0.9)),
        "schedule",
        "Learning-rate schedules",
    ),
    case(
        lambda: optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9),
        "ema",
        "`use_ema`",
        "approximate",
        "the last writer wins for the averages",
        synchronous="yes",
        marks=[OWN_VALUE("_average$", "an average whose decay depends on the step")],
    ),
]


@pytest.mark.parametrize("make", [*RULES, *OPTIONS])
def test_optimizer(strategy, regression, is_synchronous, trains, make):
    if not is_synchronous:
        assert_updates_are_those_of_keras(strategy, make, regression)
    model, history = trains(
        lambda: mlp(optimizer=make()), *regression, epochs=6, steps=6 * STEPS, rtol=1e-3
    )
    assert history["loss"][-1] < history["loss"][0]
    assert model.optimizer.iterations == 6 * STEPS


def assert_updates_are_those_of_keras(strategy, make, regression):
    with strategy.scope():
        model = mlp(optimizer=make())
    plain = mlp(optimizer=make())
    plain.set_weights(model.get_weights())
    for _ in range(3):
        for each in (model, plain):
            each.train_on_batch(*regression)
    assert_alike(model.get_weights(), plain.get_weights(), rtol=1e-3, atol=1e-5)


@pytest.mark.feature("`MultiOptimizer`")
@pytest.mark.skipif(
    not hasattr(optimizers, "MultiOptimizer"), reason="Keras has it since 3.15"
)
def test_multi_optimizer(regression, trains):
    def build():
        rules = optimizers.OptimizerMap(optimizers.SGD(0.05))
        rules["hidden"] = optimizers.Adam(0.05)
        return compiled(
            keras.layers.Dense(8, "tanh", name="hidden"),
            keras.layers.Dense(1),
            optimizer=optimizers.MultiOptimizer(rules),
        )

    model, history = trains(build, *regression, epochs=3, steps=3 * STEPS)
    assert history["loss"][-1] < history["loss"][0]
    assert model.optimizer.iterations == 3 * STEPS


class AddingUp(optimizers.SGD):
    """An optimizer whose `apply` needs what its `build` makes last."""

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.sums = [self.add_variable_from_reference(v, "sum") for v in variables]

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        for each, gradient in zip(self.sums, grads, strict=True):
            each.assign_add(gradient)
        return super().apply([each / 2 for each in grads], trainable_variables)


class AddingUpPairs(AddingUp):
    def apply(self, grads, trainable_variables=None):
        return optimizers.SGD.apply(self, grads, trainable_variables)

    def apply_gradients(self, grads_and_vars):
        grads, variables = zip(*grads_and_vars, strict=True)
        AddingUp.apply(self, grads, variables)


@pytest.mark.parameter_server
@pytest.mark.parametrize("optimizer", [AddingUp, AddingUpPairs])
@pytest.mark.parametrize("is_callable", [True, False])
def test_an_optimizer_whose_apply_is_its_own(
    strategy, regression, is_callable, optimizer
):
    class Own(keras.Sequential if is_callable else keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ self.trainable_variables[0] - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(
                zip(gradients, self.trainable_variables, strict=True)
            )
            return {"error": loss}

    with strategy.scope():
        dense = keras.layers.Dense(1, use_bias=False)
        model = Own([keras.Input((4,)), dense]) if is_callable else Own()
        if not is_callable:
            model.kernel = model.add_weight((4, 1), "zeros")
        model.compile(optimizer(0.01))
    before = model.get_weights()[0]
    model.fit(*regression, batch_size=8, verbose=0)
    [total], [after] = map(list, (model.optimizer.sums, model.get_weights()))
    assert_alike([before - after], [0.005 * total.numpy()], rtol=1e-5)


@pytest.mark.sets_own_value("_average$", "an average whose decay depends on the step")
def test_averages_become_the_weights(strategy, regression):
    with strategy.scope():
        model = mlp(optimizer=optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9))
    model.fit(*regression, batch_size=8, epochs=3, verbose=0)
    averages = [v for v in model.optimizer.variables if "average" in v.path]
    assert_alike(model.get_weights(), averages)


def test_learning_rate_follows_the_steps(strategy, regression):
    schedule = optimizers.schedules.PiecewiseConstantDecay([STEPS - 1], [0.1, 0.0])
    with strategy.scope():
        model = mlp(optimizer=optimizers.SGD(schedule))
    model.fit(*regression, batch_size=8, verbose=0)
    assert float(model.optimizer.learning_rate) == 0.0
    after_one_epoch = model.get_weights()
    model.fit(*regression, batch_size=8, verbose=0)
    assert_alike(after_one_epoch, model.get_weights())


@pytest.fixture
def dtype_policy():
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@pytest.mark.feature("`mixed_bfloat16`")
def test_mixed_bfloat16(regression, trains, dtype_policy):
    dtype_policy("mixed_bfloat16")

    def build():
        return mlp(optimizer=optimizers.SGD(0.02), metrics=["mae"])

    # bfloat16 keeps 8 bits.
    model, history = trains(build, *regression, epochs=6, steps=6 * STEPS, rtol=0.05)
    assert model.layers[0].compute_dtype == "bfloat16"
    assert history["loss"][-1] < history["loss"][0]
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    assert model.predict(regression[0], verbose=0).shape == (64, 1)


@pytest.mark.feature("`float64`")
def test_float64(regression, trains, dtype_policy):
    dtype_policy("float64")
    model, history = trains(
        lambda: mlp(optimizer=optimizers.Adam(0.02)),
        *regression,
        epochs=3,
        steps=3 * STEPS,
        rtol=1e-6,
    )
    assert history["loss"][-1] < history["loss"][0]
    assert {v.dtype for v in model.trainable_variables} == {"float64"}


@pytest.mark.feature(
    "`float(model.optimizer.learning_rate)`, `int(model.optimizer.iterations)`"
)
def test_numbers_of_an_optimizer(strategy, regression):
    with strategy.scope():
        model = mlp(optimizer=optimizers.SGD(0.25))
    model.fit(*regression, batch_size=8, verbose=0)
    assert float(model.optimizer.learning_rate) == 0.25
    assert int(model.optimizer.iterations) == STEPS
    assert f"{model.optimizer.iterations.numpy():d}" == str(STEPS)
