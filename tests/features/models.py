"""Small models, the same inside a strategy's scope and outside of it."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

KERAS = tuple(int(part) for part in keras.__version__.split(".")[:2])


def row(name: str, make: Any, *feature: Any, marks: Any = (), **told: Any) -> Any:
    """Returns a parameter of this name, which is a row of the feature table.

    The feature is the class of this name, unless the row calls it something else.
    """
    mark = pytest.mark.feature(*(feature or [f"`{name}`"]), **told)
    return pytest.param(make, id=name, marks=[mark, *marks])


def compiled(*layers: keras.Layer, **compile: Any) -> keras.Sequential:
    """A model of four inputs, with SGD and the mean squared error unless said."""
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **compile})
    return model


def built_in_scope(
    strategy: Any, build: Callable[[], Any], optimizer: Any, **options: Any
) -> keras.Model:
    """A classifier that is built and compiled in the scope of a strategy."""
    with strategy.scope():
        model = build()
        model.compile(
            optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **options,
        )
    return model


def trained_beside_one_process(
    strategy: Any,
    build: Callable[[], Any],
    make_optimizer: Callable[[], Any],
    x: np.ndarray,
    y: np.ndarray,
    batch_size: int,
    jit_compile: bool | str = "auto",
) -> tuple[keras.Model, keras.Model]:
    """A classifier, and another that one process trains to the same loss.

    One call of all steps runs on one worker, so that its result is determined.
    """
    steps = len(x) // batch_size
    options = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
    with strategy.scope():
        optimizer = make_optimizer()
    compile = {"steps_per_execution": steps, "jit_compile": jit_compile}
    model = built_in_scope(strategy, build, optimizer, **compile)
    alone = build()
    alone.set_weights(model.get_weights())
    alone.compile(
        make_optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=jit_compile,
    )
    ours = model.fit(x, y, **options).history
    theirs = alone.fit(x, y, **options).history
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-4)
    return model, alone


def positions(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 20 numbers, and where the greatest of the first 10 is."""
    x = np.random.default_rng(0).normal(size=(count, 20)).astype("float32")
    return x, x[:, :10].argmax(axis=1)


def assert_alike(ours: Any, theirs: Any, **tolerance: float) -> None:
    """Compares arrays or variables one by one; without a tolerance, they are equal."""
    for one, other in zip(ours, theirs, strict=True):
        if tolerance:
            np.testing.assert_allclose(np.array(one), np.array(other), **tolerance)
        else:
            np.testing.assert_array_equal(np.array(one), np.array(other))


def state_of(model: keras.Model) -> list[keras.Variable]:
    """All that training changes: weights, slots and counts."""
    return [*model.weights, *model.optimizer.variables]


def mlp(*, units: int = 1, **compile: Any) -> keras.Sequential:
    dense = keras.layers.Dense
    return compiled(dense(8, "tanh"), dense(units), **compile)


def mlp_of_20() -> keras.Sequential:
    """Two dense layers, of 20 features and 10 outputs."""
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((20,)), layers.Dense(30, activation="relu"), layers.Dense(10)]
    )


def cnn_of_20() -> keras.Sequential:
    """A convolution with state and noise, of as many features and outputs."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((20,)),
            layers.Reshape((5, 4, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.5, seed=1),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def classifier(**compile: Any) -> keras.Sequential:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mlp(units=3, **{"loss": loss, **compile})


class SampleCount(keras.metrics.Metric):
    """The number of samples seen by the training steps."""

    def __init__(self, name: str = "samples", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.count = self.add_variable((), "zeros", dtype="int64", name="count")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(tf.shape(y, out_type=tf.int64)[0])

    def result(self) -> Any:
        # Not the variable itself, which the validation resets.
        return self.count + 0


class Seen(keras.metrics.Metric):
    """How often the steps have seen each sample, whose target is its index."""

    def __init__(self, samples: int, name: str = "seen", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.times = self.add_variable((samples,), "zeros", dtype="int64", name="times")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        indices = tf.reshape(tf.cast(y, tf.int64), [-1])
        ones = tf.ones_like(indices)
        self.times.assign_add(tf.scatter_nd(indices[:, None], ones, self.times.shape))

    def result(self) -> Any:
        # Not the variable itself, which the validation resets.
        return self.times + 0


def counting(samples: int) -> keras.Sequential:
    """A model that hardly learns, and tells how often it has seen each sample."""
    optimizer = keras.optimizers.SGD(1e-4)
    return compiled(keras.layers.Dense(1), optimizer=optimizer, metrics=[Seen(samples)])
