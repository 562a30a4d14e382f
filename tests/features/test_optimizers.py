"""Optimizers and precision."""

import keras
import pytest
import tensorflow as tf
from keras.optimizers import SGD, Adam, RMSprop
from models import KERAS, assert_alike, compiled, mlp, row

optimizers = keras.optimizers
STEPS = 8
OWN_VALUE = pytest.mark.sets_own_value
REPEATED = "the gradients of an id that a batch repeats are summed first"
SETS_PRODUCT = pytest.mark.sets_own_value(
    r"(^|/)variable(_\d+)?$", "a product: an increment could make it negative"
)
RULES = [
    row("SGD", lambda: SGD(0.05)),
    row("momentum", lambda: SGD(0.01, momentum=0.9), "`SGD(momentum=...)`"),
    row("nesterov", lambda: SGD(0.01, 0.9, nesterov=True), "`SGD(nesterov=True)`"),
    row(
        "low-momentum",
        lambda: SGD(0.02, momentum=0.5),
        "A momentum below 1 - 1/(2 x workers)",
        on_ps="for rows of an embedding, the last writer wins",
    ),
    row("Adam", lambda: Adam(0.02)),
    row(
        "amsgrad",
        lambda: Adam(0.02, amsgrad=True),
        "`Adam(amsgrad=True)`",
        on_ps="for rows of an embedding, the last writer wins for the maximum",
    ),
    row("AdamW", lambda: optimizers.AdamW(0.02)),
    row("RMSprop", lambda: RMSprop(0.02)),
    row(
        "RMSprop-centered",
        lambda: RMSprop(0.002, momentum=0.9, centered=True),
        "`RMSprop(momentum=..., centered=True)`",
    ),
    row("Adagrad", lambda: optimizers.Adagrad(0.1)),
    row("Adadelta", lambda: optimizers.Adadelta(5.0)),
    row(
        "Adamax",
        lambda: optimizers.Adamax(0.02),
        on_ps="for rows of an embedding, the last writer wins for the norm",
    ),
    row(
        "Nadam",
        lambda: optimizers.Nadam(0.02),
        on_ps="the last writer wins for the product of the momentum schedule",
        marks=[SETS_PRODUCT],
    ),
    row(
        "Ftrl",
        lambda: optimizers.Ftrl(0.5),
        on_ps="for rows of an embedding, sums are exact, and the last writer wins for "
        "the weights computed from them",
    ),
    row("Lion", lambda: optimizers.Lion(0.01)),
    row("Lamb", lambda: optimizers.Lamb(0.05)),
    row(
        "Adafactor",
        lambda: optimizers.Adafactor(0.1),
        on_ps="the last writer wins for the factored second moments",
        marks=[OWN_VALUE("^adafactor", "an average whose decay depends on the step")],
    ),
    row(
        "Muon",
        lambda: optimizers.Muon(0.01),
        marks=[pytest.mark.skipif(KERAS < (3, 13), reason="Keras has it since 3.13")],
    ),
    row("clipnorm", lambda: SGD(0.1, clipnorm=0.5), on_ps=REPEATED),
    row("clipvalue", lambda: SGD(0.05, clipvalue=0.1), on_ps=REPEATED),
    row("global_clipnorm", lambda: SGD(0.1, global_clipnorm=0.5), on_ps=REPEATED),
    row("weight_decay", lambda: SGD(0.05, weight_decay=0.1)),
    row("loss_scale_factor", lambda: SGD(0.05, loss_scale_factor=64.0)),
    row(
        "schedule",
        lambda: SGD(optimizers.schedules.ExponentialDecay(0.05, 4, 0.9)),
        "Learning-rate schedules",
    ),
    row(
        "ema",
        lambda: SGD(0.05, use_ema=True, ema_momentum=0.9),
        "`use_ema`",
        on_ps="the last writer wins for the averages",
        marks=[OWN_VALUE("_average$", "an average whose decay depends on the step")],
    ),
]


@pytest.mark.in_gate("Adam")
@pytest.mark.parametrize("make", RULES)
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


@pytest.mark.in_gate
@pytest.mark.feature("`MultiOptimizer`")
@pytest.mark.skipif(
    not hasattr(optimizers, "MultiOptimizer"), reason="Keras has it since 3.15"
)
def test_multi_optimizer(regression, trains):
    def build():
        rules = optimizers.OptimizerMap(SGD(0.05))
        rules["hidden"] = Adam(0.05)
        return compiled(
            keras.layers.Dense(8, "tanh", name="hidden"),
            keras.layers.Dense(1),
            optimizer=optimizers.MultiOptimizer(rules),
        )

    model, history = trains(build, *regression, epochs=3, steps=3 * STEPS)
    assert history["loss"][-1] < history["loss"][0]
    assert model.optimizer.iterations == 3 * STEPS


class AddingUp(SGD):
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
        return SGD.apply(self, grads, trainable_variables)

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


@pytest.mark.in_gate
@pytest.mark.sets_own_value("_average$", "an average whose decay depends on the step")
def test_averages_become_the_weights(strategy, regression):
    with strategy.scope():
        model = mlp(optimizer=SGD(0.05, use_ema=True, ema_momentum=0.9))
    model.fit(*regression, batch_size=8, epochs=3, verbose=0)
    averages = [v for v in model.optimizer.variables if "average" in v.path]
    assert_alike(model.get_weights(), averages)


@pytest.fixture
def dtype_policy():
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@pytest.mark.feature("`mixed_bfloat16`")
def test_mixed_bfloat16(regression, trains, dtype_policy):
    dtype_policy("mixed_bfloat16")

    def build():
        return mlp(optimizer=SGD(0.02), metrics=["mae"])

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
        lambda: mlp(optimizer=Adam(0.02)),
        *regression,
        epochs=3,
        steps=3 * STEPS,
        rtol=1e-6,
    )
    assert history["loss"][-1] < history["loss"][0]
    assert {v.dtype for v in model.trainable_variables} == {"float64"}


@pytest.mark.in_gate
@pytest.mark.feature(
    "`float(model.optimizer.learning_rate)`, `int(model.optimizer.iterations)`"
)
def test_numbers_of_an_optimizer(strategy, regression):
    with strategy.scope():
        model = mlp(optimizer=SGD(0.25))
    model.fit(*regression, batch_size=8, verbose=0)
    assert float(model.optimizer.learning_rate) == 0.25
    assert int(model.optimizer.iterations) == STEPS
    assert f"{model.optimizer.iterations.numpy():d}" == str(STEPS)
