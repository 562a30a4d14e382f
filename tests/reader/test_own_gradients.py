"""Which gradient functions of a program may be computed from parts of the batch."""

import pytest
import tensorflow as tf

from tfdist.synchronous.reader.indivisible import IndivisibleLossError
from tfdist.synchronous.reader.reduction import Reduction
from tfdist.synchronous.reader.reduction_reader import ReductionReader
from tfdist.synchronous.replica.gradients import check_own_gradients

from ..support.raising import raises

KERNEL = tf.Variable(tf.random.normal([4, 3]))
OUTPUT = tf.Variable(tf.random.normal([3, 1]))


def with_gradient(gradient):
    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), gradient

    return identity


def clipped(d):
    return tf.clip_by_value(d, -0.1, 0.1)


def fits(x, y, kernel=KERNEL, own=tf.identity):
    return tf.reduce_mean(tf.square(tf.tanh(own(x @ kernel)) @ OUTPUT - y))


def around_rows(gradient):
    return lambda x, y: fits(x, y, own=with_gradient(gradient))


def around_kernel(gradient):
    return lambda x, y: fits(x, y, with_gradient(gradient)(KERNEL))


@tf.custom_gradient
def reversed_by(x, factor):
    return tf.identity(x), lambda d: (-factor * d, None)


@tf.custom_gradient
def times_output(x):
    product = x @ tf.convert_to_tensor(OUTPUT)

    def gradient(d, variables=None):
        return d @ tf.transpose(OUTPUT), [tf.sign(tf.transpose(x) @ d)]

    return product, gradient


def check(loss):
    def trace(x, y, share):
        reader = ReductionReader(
            lambda tensor: Reduction.SAME if tensor is share else None
        )
        reader.begin_with([x, y])
        with tf.GradientTape() as tape:
            value = loss(x, y)
        weight = share * tf.ones_like(value)
        gradients = tape.gradient(value, [KERNEL, OUTPUT], output_gradients=weight)
        check_own_gradients(reader, tf.compat.v1.get_default_graph(), gradients)

    rows = [tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]), tf.TensorSpec([])]
    tf.function(trace, autograph=False).get_concrete_function(*rows)


@pytest.mark.parametrize(
    "loss",
    [
        fits,
        around_rows(clipped),
        lambda x, y: around_rows(lambda d: -d)(x, y) + tf.norm(KERNEL),
        lambda x, y: fits(x, y, own=lambda p: reversed_by(p, 0.5)),
    ],
)
def test_those_of_single_examples_add_up(loss):
    check(loss)


@pytest.mark.parametrize(
    "loss",
    [
        around_kernel(clipped),
        around_kernel(lambda d: 0.5 * d),
        lambda x, y: fits(x, y) + tf.norm(with_gradient(tf.sign)(KERNEL)),
        lambda x, y: tf.reduce_mean(times_output(x @ KERNEL) - y),
        lambda x, y: with_gradient(clipped)(fits(x, y)),
        lambda x, y: tf.function(around_rows(clipped))(x, y),
    ],
)
def test_those_around_weights_and_numbers_are_refused(loss):
    with raises(IndivisibleLossError, "weight or a number"):
        check(loss)


@pytest.mark.parametrize(
    ("gradient", "words"),
    [
        (lambda d: d - tf.reduce_mean(d, 0), "Sub"),
        (lambda d: d[::-1], "StridedSlice"),
    ],
)
def test_those_of_all_examples_are_refused(gradient, words):
    with pytest.raises(IndivisibleLossError, match=rf"{words}.*test_own_gradients\.py"):
        check(around_rows(gradient))
