"""Which compiled losses and metrics are computed on parts of the batch."""

import keras
import pytest
import tensorflow as tf

from tfdist.synchronous.replica.separable import is_separable

VECTORS, NUMBERS = tf.zeros([4, 3]), tf.zeros([4])


def squared(y, p):
    return (y - p) ** 2


class OwnError(keras.losses.MeanSquaredError):
    pass


def resolved(loss):
    """What `compile` makes of a loss."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile(loss=loss)
    found = []
    model._compile_loss.build(VECTORS, VECTORS)
    for each in model._compile_loss._flat_losses:
        found.append(getattr(each.loss, "args", [each.loss])[0])
    return found[0]


@pytest.mark.parametrize(
    "loss",
    [
        "mse",
        "crossentropy",
        keras.losses.mean_absolute_error,
        keras.losses.Huber(),
        keras.losses.CategoricalCrossentropy(axis=1),
    ],
)
def test_separable_loss(loss):
    assert is_separable(resolved(loss), VECTORS)


@pytest.mark.parametrize(
    "loss",
    [
        squared,
        OwnError(),
        keras.losses.Circle(),
        keras.losses.Dice(),
        keras.losses.Tversky(),
        keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        keras.losses.CategoricalCrossentropy(axis=0),
        keras.losses.CosineSimilarity(axis=-2),
    ],
)
def test_loss_of_the_whole_batch(loss):
    assert not is_separable(resolved(loss), VECTORS)


def test_an_example_without_an_axis_of_its_own():
    assert not is_separable(resolved("mse"), NUMBERS)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (keras.metrics.AUC(), True),
        (keras.metrics.MeanSquaredError(), True),
        (keras.metrics.MeanMetricWrapper(keras.metrics.binary_accuracy), True),
        (keras.metrics.MeanMetricWrapper(squared), False),
        (type("Own", (keras.metrics.AUC,), {})(), False),
    ],
)
def test_metric(metric, expected):
    assert is_separable(metric, VECTORS) is expected
