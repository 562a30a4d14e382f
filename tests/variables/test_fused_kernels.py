"""Fused kernels compute what Keras's optimizers compute: on variables of one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist import _tf
from tfdist.variables import fused_update, narrowing
from tfdist.variables.fused_kernels import RULES, kernel_for
from tfdist.variables.variable import ParameterServerVariable

optimizers = keras.optimizers
SHAPE = (3, 4)
STEPS = 5

FUSED = {
    "ResourceApplyGradientDescent": [lambda: optimizers.SGD(0.1)],
    "ResourceApplyKerasMomentum": [
        lambda: optimizers.SGD(0.1, momentum=0.9),
        lambda: optimizers.SGD(0.1, momentum=0.3),
        lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    ],
    "ResourceApplyAdam": [
        lambda: optimizers.Adam(0.01),
        lambda: optimizers.Adam(0.01, beta_1=0.5, beta_2=0.9, epsilon=1e-2),
        lambda: optimizers.AdamW(0.01),
    ],
    "ResourceApplyAdamWithAmsgrad": [lambda: optimizers.Adam(0.01, amsgrad=True)],
    "ResourceApplyAdaMax": [
        lambda: optimizers.Adamax(0.01),
        lambda: optimizers.Adamax(0.01, epsilon=0.1),
    ],
    "ResourceApplyRMSProp": [lambda: optimizers.RMSprop(0.01, momentum=0.9)],
    "ResourceApplyCenteredRMSProp": [
        lambda: optimizers.RMSprop(0.01, momentum=0.9, centered=True)
    ],
    "ResourceApplyAdadelta": [
        lambda: optimizers.Adadelta(1.0),
        lambda: optimizers.Adadelta(1.0, epsilon=0.1),
    ],
    "ResourceApplyAdagradV2": [lambda: optimizers.Adagrad(0.1, epsilon=0.0)],
    "ResourceApplyFtrlV2": [
        lambda: optimizers.Ftrl(0.1),
        lambda: optimizers.Ftrl(
            0.1,
            learning_rate_power=-0.7,
            l1_regularization_strength=0.2,
            l2_regularization_strength=0.3,
            l2_shrinkage_regularization_strength=0.1,
        ),
    ],
}
CASES = [
    pytest.param(op, make, id=f"{op.removeprefix('ResourceApply')}-{i}")
    for op, makes in FUSED.items()
    for i, make in enumerate(makes)
]

UNFUSED = {
    "RMSprop": lambda: optimizers.RMSprop(0.1),
    "RMSprop-centered": lambda: optimizers.RMSprop(0.1, centered=True),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Ftrl-beta": lambda: optimizers.Ftrl(0.1, beta=0.5),
    "Adam-beta_2": lambda: optimizers.Adam(0.1, beta_2=0.99999),
    "Nadam": lambda: optimizers.Nadam(0.1),
    "Lion": lambda: optimizers.Lion(0.1),
    "Lamb": lambda: optimizers.Lamb(0.1),
    "Adafactor": lambda: optimizers.Adafactor(0.1),
}


def on_ps(value):
    return ParameterServerVariable(tf.Variable(value), num_workers=2, is_weight=True)


class Trained:
    """A weight and its slots that a traced step updates, as on a ps.

    Args:
        optimizer: What updates it.
        update: What to do in place of `update_step`.
    """

    def __init__(self, optimizer, update, dtype="float32"):
        value = np.linspace(-1, 1, 12).reshape(SHAPE).astype(dtype)
        plain = tf.Variable(value)
        optimizer.build([plain])
        self.optimizer = optimizer
        self.weight = on_ps(value)
        self.slots = []
        for name, given_slots in list(vars(optimizer).items()):
            if isinstance(given_slots, list) and _are_slots(optimizer, given_slots):
                slots = [on_ps(slot.numpy()) for slot in given_slots]
                object.__setattr__(optimizer, name, slots)
                self.slots += slots
        optimizer._get_variable_index = lambda variable: 0

        @tf.function
        def step(gradient):
            self.took = update(
                optimizer, gradient, self.weight, optimizer.learning_rate
            )

        self.step = step

    def values(self):
        return [each.numpy() for each in (self.weight, *self.slots)]

    def run(self, gradients):
        for gradient in gradients:
            self.step(gradient)
            self.optimizer.iterations.assign_add(1)
        return self.values()


def _are_slots(optimizer, given_slots):
    ids = {id(variable) for variable in optimizer.variables}
    return len(given_slots) == 1 and all(id(slot) in ids for slot in given_slots)


def of_keras(optimizer, gradient, weight, learning_rate):
    method = type(optimizer).update_step
    method = getattr(method, "__wrapped__", method)
    method(optimizer, gradient, weight, learning_rate)


def gradients(seed=0, dtype="float32", steps=STEPS):
    return np.random.default_rng(seed).normal(size=(steps, *SHAPE)).astype(dtype)


def assert_same(make, dtype="float32", rtol=3e-5, given_gradients=None):
    if given_gradients is None:
        given_gradients = gradients(dtype=dtype)
    fused = Trained(make(), fused_update.update, dtype)
    plain = Trained(make(), of_keras, dtype)
    assert len(fused.slots) == len(plain.slots)
    before = fused.values()
    ours, theirs = fused.run(given_gradients), plain.run(given_gradients)
    assert fused.took
    for old, new, expected in zip(before, ours, theirs, strict=True):
        assert not np.array_equal(old, new)
        np.testing.assert_allclose(new, expected, rtol=rtol, atol=rtol / 10)
    return fused


@pytest.mark.parametrize(("op", "make"), CASES)
def test_a_kernel_computes_what_keras_computes(op, make):
    fused = assert_same(make)
    graph = fused.step.get_concrete_function(tf.TensorSpec(SHAPE)).graph
    writes = [each for each in graph.get_operations() if "Apply" in each.type]
    assert [each.type for each in writes] == [op]
    assert writes[0].get_attr("use_locking")
    assert not [o for o in graph.get_operations() if o.type.startswith("Assign")]


@pytest.mark.not_in_gate
@pytest.mark.parametrize("make", [makes[0] for makes in FUSED.values()], ids=FUSED)
def test_it_does_in_float64(make, request):
    before = keras.backend.floatx()
    keras.backend.set_floatx("float64")
    request.addfinalizer(lambda: keras.backend.set_floatx(before))
    # Keras rounds some numbers, such as SGD's momentum, to float32 on their way.
    assert_same(make, "float64", rtol=1e-6)


rates = st.floats(1e-4, 0.5)
decays = st.floats(0.0, 0.99)
epsilons = st.floats(1e-7, 0.1)
MAKES = st.one_of(
    st.builds(optimizers.SGD, rates, momentum=decays, nesterov=st.booleans()),
    st.builds(
        optimizers.Adam,
        rates,
        beta_1=decays,
        beta_2=decays,
        epsilon=epsilons,
        amsgrad=st.booleans(),
    ),
    st.builds(optimizers.Adamax, rates, beta_1=decays, beta_2=decays, epsilon=epsilons),
    st.builds(
        optimizers.RMSprop,
        rates,
        rho=decays,
        momentum=st.floats(0.01, 0.99),
        epsilon=epsilons,
        centered=st.booleans(),
    ),
    st.builds(optimizers.Adadelta, rates, rho=decays, epsilon=epsilons),
    st.builds(
        optimizers.Ftrl,
        rates,
        learning_rate_power=st.floats(-1.0, -0.1),
        l1_regularization_strength=st.floats(0.0, 1.0),
        l2_regularization_strength=st.floats(0.0, 1.0),
        l2_shrinkage_regularization_strength=st.floats(0.0, 0.5),
    ),
)


@pytest.mark.not_in_gate
@settings(max_examples=30)
@given(made=MAKES, seed=st.integers(0, 2**16))
def test_whatever_its_options(made, seed):
    config = made.get_config()

    def make():
        return type(made).from_config(config)

    assert_same(make, "float64", rtol=1e-5, given_gradients=gradients(seed, "float64"))


@pytest.mark.parametrize("make", UNFUSED.values(), ids=UNFUSED)
def test_without_an_equal_kernel_nothing_is_done(make):
    trained = Trained(make(), fused_update.update)
    before = trained.values()
    after = trained.run(gradients(steps=1))
    assert not trained.took
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


def rejects(make=lambda: optimizers.SGD(0.1), gradient=None, weight=None):
    """Whether a traced update is left to Keras, and adds no operation."""
    optimizer = make()
    optimizer.build([tf.Variable(np.zeros(SHAPE, "float32"))])
    optimizer._get_variable_index = lambda variable: 0
    weight = on_ps(np.zeros(SHAPE, "float32")) if weight is None else weight
    with _tf.scratch_graph("step").as_default():
        given_gradient = tf.zeros(SHAPE) if gradient is None else gradient(weight)
        return not fused_update.update(optimizer, given_gradient, weight, 0.1)


def test_an_ordinary_update_is_not_left_to_keras():
    assert not rejects()


def test_gradients_of_rows_are_left_to_keras():
    rows = tf.constant([0])
    assert rejects(gradient=lambda _: tf.IndexedSlices(tf.zeros([1, 4]), rows))
    weight = on_ps(np.zeros(SHAPE, "float32"))
    with narrowing.of_rows(weight, rows):
        assert rejects(weight=weight)


@pytest.mark.parametrize("shape", [[4], [3, 1], [None, 4], None])
def test_gradients_of_another_shape_are_left_to_keras(shape):
    assert rejects(
        gradient=lambda _: tf.compat.v1.placeholder(tf.float32, shape),
    )


def test_half_precision_and_plain_variables_are_left_to_keras():
    assert rejects(weight=on_ps(tf.zeros(SHAPE, tf.bfloat16)))
    assert rejects(weight=tf.Variable(tf.zeros(SHAPE)))


def test_an_eager_update_is_left_to_keras():
    weight = on_ps(np.zeros(SHAPE, "float32"))
    assert not fused_update.update(optimizers.SGD(0.1), tf.ones(SHAPE), weight, 0.1)
    assert not np.any(weight.numpy())


@pytest.mark.parametrize("method", ["update_step", "assign", "assign_sub"])
def test_an_optimizer_with_a_method_of_its_own_is_left_to_keras(method):
    def make():
        optimizer = optimizers.SGD(0.1)
        setattr(optimizer, method, getattr(optimizer, method))
        return optimizer

    assert rejects(make)


def test_a_slot_elsewhere_leaves_the_update_to_keras():
    # `rejects` builds slots that are plain variables.
    assert rejects(lambda: optimizers.SGD(0.1, momentum=0.9))


def test_options_that_are_no_numbers_have_no_kernel():
    optimizer = optimizers.Adam(0.1)
    optimizer.build([tf.Variable(0.0)])
    assert kernel_for(optimizer, "float32") is not None
    optimizer.epsilon = tf.Variable(1e-7)
    assert kernel_for(optimizer, "float32") is None


def test_the_step_reads_what_the_kernel_has_written():
    weight = on_ps(np.zeros(SHAPE, "float32"))
    optimizer = optimizers.SGD(1.0)

    @tf.function
    def step(gradient):
        before = weight.read_value()
        fused_update.update(optimizer, gradient, weight, 1.0)
        return before, weight.read_value()

    before, after = step(tf.ones(SHAPE))
    assert not np.any(before)
    assert np.all(after == -1)


def test_every_rule_has_a_case():
    classes = {type(make()).__name__ for makes in FUSED.values() for make in makes}
    assert classes == set(RULES)
