"""A `@tf.function` that a step calls, or that surrounds a layer, keeps its writes."""

import importlib
import pkgutil
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdist.keras import building, hooks
from tfdist.keras.computation import computing
from tfdist.keras.default_driver import DefaultDriver
from tfdist.keras.step_writes import LostWritesError
from tfdist.parameter_server.gate import order_reads_and_writes
from tfdist.parameter_server.rounds.computation import RoundComputation, RoundError
from tfdist.synchronous.replica.collectives import exchanged
from tfdist.synchronous.replica.computation import tracing
from tfdist.synchronous.replica.step import NestedFunctionError, ReplicaStep

from ..support.raising import raises


@pytest.fixture(scope="module", autouse=True)
def hooked():
    """As making a strategy does, which not every test of this file does first."""
    hooks.install()


X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


class Local(DefaultDriver):
    def _function(self, step):
        @tf.function(autograph=False)
        def run(batch):
            return self.strategy.run(step, args=(batch,))

        return run

    def train_step_function(self, model):
        return self._function(building.step_of(model, building.TRAIN))

    def test_step_function(self, model):
        return self._function(building.step_of(model, building.TEST))


def local_strategy():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    strategy.fit_driver = Local(strategy)
    return strategy


class Compiled(layers.Layer):
    """Normalizes and counts in a function of its own, as a user of TensorFlow 1.x does."""

    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization()
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="calls"
        )

    def build(self, shape):
        self.norm.build(shape)

    @tf.function
    def call(self, x, training=None):
        self.calls.assign_add(1.0)
        return self.norm(x, training=training)


class FunctionInStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization()
        self.dense = layers.Dense(1)

    def call(self, x, training=False):
        return self.dense(self.norm(x, training=training))

    def train_step(self, data):
        loss = self.update(*data)
        return {"loss": loss}

    @tf.function
    def update(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss


class WithoutCall(FunctionInStep):
    """Keras cannot build it, so that its step is rehearsed until it has variables."""

    call = keras.Model.call

    @tf.function
    def update(self, x, y):
        with tf.GradientTape() as tape:
            predicted = self.dense(self.norm(x, training=True))
            loss = tf.reduce_mean(tf.square(y - predicted))
        weights = self.dense.trainable_variables + self.norm.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return loss


class WithTwoTapes(WithoutCall):
    """Moves its weights, computes a gradient there, and moves them back."""

    def train_step(self, data):
        x, y = data
        loss = tf.reduce_mean(tf.square(y - self.dense(self.norm(x, training=True))))
        weights = self.dense.trainable_variables
        for each in weights:
            each.assign_add(0.1 * tf.ones_like(each))
        with tf.GradientTape() as tape:
            moved = tf.reduce_mean(tf.square(y - self.dense(self.norm(x))))
        gradients = tape.gradient(moved, weights)
        for each in weights:
            each.assign_sub(0.1 * tf.ones_like(each))
        self.optimizer.apply(gradients, weights)
        return {"loss": loss}


class FunctionAroundCall(keras.Model):
    """Its step is Keras's, but as one of its own it is rehearsed."""

    def __init__(self):
        super().__init__()
        self.inner = Compiled()
        self.dense = layers.Dense(1)

    def build(self, shape):
        self.inner.build(shape)
        self.dense.build(shape)

    @tf.function
    def call(self, x, training=None):
        return self.dense(self.inner(x, training=training))

    def train_step(self, data):
        return super().train_step(data)


def trained(build, strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = build()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    for _ in range(2):
        model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        if not isinstance(model, WithoutCall):
            model.evaluate(X, Y, batch_size=8, verbose=0)
    return {each.path: each.numpy() for each in model.variables}, model.optimizer


def paths_of(optimizer):
    """The paths of its variables, without the numbers of layers."""
    return [re.sub(r"_\d+", "", each.path) for each in optimizer.variables]


LONGER = [
    pytest.param(each, marks=pytest.mark.not_in_gate)
    for each in (FunctionAroundCall, FunctionInStep)
]


@pytest.mark.parametrize("build", [WithoutCall, WithTwoTapes, *LONGER])
def test_every_write_is_made(build):
    strategy = local_strategy()
    ours, optimizer = trained(build, strategy)
    plain, expected = trained(build, tf.distribute.get_strategy())
    assert int(optimizer.iterations) == 20
    assert paths_of(optimizer) == paths_of(expected)
    for (name, value), expected in zip(ours.items(), plain.values(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, err_msg=name)


class Generating(keras.Model):
    """Its `call` takes noise, and Keras takes the examples for it."""

    def __init__(self):
        super().__init__()
        self.generator = layers.Dense(4)

    def call(self, noise):
        return self.generator(noise)

    def train_step(self, data):
        examples, noise = data
        return {"loss": tf.reduce_mean(self.generator(noise) - examples)}


def test_layers_that_were_built_for_other_inputs_than_the_steps_say_how_to_build_them():
    strategy = local_strategy()
    with strategy.scope():
        model = Generating()
        model.compile("sgd")
    with raises(ValueError, "value 4", "(None, 3)") as found:
        model.fit(X, X[:, :3], verbose=0)
    (advice,) = found.value.__notes__
    assert "Give the layer an Input, or remove the model's `call`" in advice


class TakingTurns(FunctionAroundCall):
    """Does something else at every call of its step, which Keras calls once."""

    turn = 0

    def build(self, shape):
        super().build(shape)
        self.odd = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="odd"
        )

    def train_step(self, data):
        self.turn += 1
        if self.turn % 2:
            self.odd.assign_add(1.0)
        return super().train_step(data)


def test_a_write_that_the_rehearsal_took_away_is_reported():
    strategy = local_strategy()
    words = r"train_step writes (\w+/)*odd when .* Python state .*add_weight"
    with pytest.raises(LostWritesError, match=words):
        trained(TakingTurns, strategy)


def inside(how, function):
    """Calls a function within a condition, a loop or a function."""
    if how == "cond":
        tf.cond(tf.constant(True), lambda: (function(), 0)[1], lambda: 0)
    elif how == "loop":
        tf.while_loop(
            lambda i: i < 1, lambda i: (function(), i + 1)[1:], (tf.constant(0),)
        )
    else:
        tf.function(function, autograph=False)()


@pytest.mark.parametrize("how", ["cond", "loop", "function"])
def test_a_round_takes_gradients_from_the_step_itself(how):
    weight = keras.Variable(1.0)
    optimizer = keras.optimizers.SGD()

    def step():
        with computing(RoundComputation(tf.constant(1), lambda contribution: None)):
            inside(how, lambda: optimizer.apply([tf.constant(1.0)], [weight]))

    with raises(RoundError, "tf.cond", "tf.where"):
        tf.function(step, autograph=False).get_concrete_function()


def test_replicas_exchange_nothing_within_a_function_of_the_step():
    def step():
        one = tf.constant(1, tf.int64)
        replica = ReplicaStep(tf.zeros([], tf.int64), one, one)
        inside("function", lambda: exchanged(replica, [tf.constant(1.0)]))

    with raises(NestedFunctionError, "@tf.function"):
        tf.function(step, autograph=False).get_concrete_function()


class OfFixedSize(keras.Model):
    """Without `call`; reads the size of a batch while it is traced."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = tf.square(y - self.dense(x)) * np.ones((x.shape[0], 1), "float32")
            loss = tf.reduce_sum(error) / x.shape[0]
        weights = self.dense.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class Regularized(keras.Model):
    """Without `call`; adds up its `losses`, as Keras's guide to custom steps does."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1, kernel_regularizer="l2")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.dense(x))) + sum(self.losses)
        weights = self.dense.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@pytest.mark.parametrize("cls", [OfFixedSize, Regularized])
def test_a_rehearsal_has_what_a_step_reads(cls):
    strategy = local_strategy()
    with strategy.scope():
        model = cls()
        model.compile("sgd")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True)
    model.fit(data, verbose=0)
    assert int(model.optimizer.iterations) == 5


def test_a_rehearsal_has_the_gradient_of_a_table():
    """Which rows it has depends on a replica's examples; those of the sum do not."""
    table = keras.Variable(tf.ones([5, 2]))
    optimizer = keras.optimizers.SGD()

    def step(ids):
        one = tf.constant(1, tf.int64)
        replica = ReplicaStep(tf.zeros([], tf.int64), one, one, is_rehearsal=True)
        replica.is_given(ids)
        with tracing(replica):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.gather(table.value, ids))
            optimizer.apply(tape.gradient(loss, [table.value]), [table])

    optimizer.build([table])
    traced = tf.function(step, autograph=False)
    traced.get_concrete_function(tf.TensorSpec([None], tf.int32))


TRACED = (
    "tfdist.keras",
    "tfdist.variables",
    "tfdist.parameter_server.rounds",
    "tfdist.parameter_server.steps",
    "tfdist.research.model_parallel.pipeline",
    "tfdist.synchronous.reader",
    "tfdist.synchronous.replica",
)
"""Packages whose code runs while a step is traced."""


def errors_of(package):
    """Returns the error classes of a package that reach a program."""
    modules = pkgutil.walk_packages(importlib.import_module(package).__path__)
    for each in modules:
        module = importlib.import_module(f"{package}.{each.name}")
        for name, value in vars(module).items():
            is_error = isinstance(value, type) and issubclass(value, Exception)
            # The reader catches its own.
            is_caught = name == "NotOwnError"
            if is_error and value.__module__ == module.__name__ and not is_caught:
                yield value


@pytest.mark.parametrize("package", TRACED)
def test_errors_raised_while_tracing_survive_autograph(package):
    for error in errors_of(package):

        def step():
            raise error("the words")  # noqa: B023

        with raises(error, "the words"):
            tf.function(step).get_concrete_function()


def test_calls_that_write_are_found_in_one_definition_of_the_graph(monkeypatch):
    variables = [tf.Variable(0.0) for _ in range(3)]
    adding = tf.function(lambda v: v.assign_add(1.0) * 2.0, autograph=False)

    @tf.function(autograph=False)
    def step(x):
        for v in variables:
            tf.cond(x > 1, lambda v=v: adding(v), lambda: 0.0)
            tf.cond(x > 1, lambda v=v: v + 1.0, lambda v=v: v * 2.0)
            v.assign(v * x)

    graph = step.get_concrete_function(tf.TensorSpec([])).graph
    of, asked = type(graph).as_graph_def, []
    monkeypatch.setattr(
        type(graph), "as_graph_def", lambda self, **o: asked.append(o) or of(self, **o)
    )
    touching = [
        op
        for op in graph.get_operations()
        if any(each.dtype == tf.resource for each in op.inputs)
    ]
    found = [op.type for op in order_reads_and_writes._writes(graph, touching)]
    assert found == ["If", "AssignVariableOp"] * len(variables)
    assert len(asked) == 1
