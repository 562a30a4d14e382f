"""Objects created outside the scope, and each strategy's message.

    STRATEGY=RingStrategy python -m launch.local --num_ps=0 --num_workers=2 \
        --program=coordinator tests/parameter_server/scope_cases.py DIRECTORY [CASE...]

Each case makes one mistake, and returns as "said" the error or, without one, the
warning; an empty text means that the strategy allows it. See case_jobs.py.
"""

import functools
import logging
import os
import sys

import case_jobs
import keras
import numpy as np
import tensorflow as tf

import tfdist

CASES = {}
trained = []
"""The sums of the weights of the model that a case has trained."""
X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def case(function):
    @functools.wraps(function)
    def run(strategy):
        trained.clear()
        return {"said": said_by(function, strategy), "trained": list(trained)}

    CASES[function.__name__] = run
    return function


def build():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def fit(model):
    model.fit(X, Y, batch_size=16, verbose=0)
    trained.extend(float(np.sum(weight)) for weight in model.get_weights())


@case
def model_outside(strategy):
    model = build()
    model.compile("adam", "mse")
    fit(model)


@case
def model_outside_compiled_inside(strategy):
    model = build()
    with strategy.scope():
        model.compile("adam", "mse")
    fit(model)


@case
def optimizer_outside(strategy):
    optimizer = keras.optimizers.Adam()
    with strategy.scope():
        model = build()
        model.compile(optimizer, "mse")
    fit(model)


@case
def compile_outside(strategy):
    with strategy.scope():
        model = build()
    model.compile("adam", "mse")
    fit(model)


@case
def metric_outside(strategy):
    metric = keras.metrics.MeanAbsoluteError()
    with strategy.scope():
        model = build()
        model.compile("adam", "mse", metrics=[metric])
    fit(model)


@case
def layer_outside(strategy):
    dense = keras.layers.Dense(3)
    dense.build((None, 4))
    with strategy.scope():
        layers = [keras.Input((4,)), dense, keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse")
    fit(model)


@case
def adapted_outside(strategy):
    normalization = keras.layers.Normalization()
    normalization.adapt(X)
    with strategy.scope():
        layers = [keras.Input((4,)), normalization, keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse")
    fit(model)


@case
def lookup_outside(strategy):
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    with strategy.scope():
        inputs = keras.Input((1,), dtype="string")
        model = keras.Model(inputs, keras.layers.Dense(1)(lookup(inputs)))
        model.compile("adam", "mse")
    words = tf.constant([["a"], ["b"]] * 16)
    model.fit(words, Y, batch_size=16, verbose=0)


@case
def load_outside(strategy):
    with strategy.scope():
        model = build()
        model.compile("adam", "mse")
    model = keras.models.clone_model(model)  # As `load_model` does.
    model.compile("adam", "mse")
    fit(model)


@case
def variable_in_a_step(strategy):
    counter = tf.Variable(0.0)

    class Counting(keras.Sequential):
        def train_step(self, data):
            counter.assign_add(1.0)
            return super().train_step(data)

    with strategy.scope():
        model = Counting([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    fit(model)


@case
def loop_outside(strategy):
    loop(strategy)


@case
def loop_inside(strategy):
    with strategy.scope():
        loop(strategy)


def loop(strategy):
    with strategy.scope():
        model = build()
        optimizer = keras.optimizers.Adam(0.1)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    step(X, Y)


@case
def all_in_the_scope(strategy):
    with strategy.scope():
        normalization = keras.layers.Normalization()
        normalization.adapt(X)
        layers = [keras.Input((4,)), normalization, keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse", metrics=["mae"])
        fit(model)
        model.evaluate(X, Y, verbose=0)
        model.predict(X, verbose=0)


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def said_by(function, strategy):
    """The error or, without one, the warnings."""
    warnings = Warnings()
    logging.getLogger("tfdist").addHandler(warnings)
    try:
        function(strategy)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger("tfdist").removeHandler(warnings)
    return " ".join(warnings.texts)


def main(directory, *names):
    strategy = getattr(tfdist, os.environ["STRATEGY"])()
    index = getattr(strategy.extended, "worker_index", 0)
    case_jobs.run_cases(directory, names, CASES, strategy, index)


if __name__ == "__main__":
    main(*sys.argv[1:])
