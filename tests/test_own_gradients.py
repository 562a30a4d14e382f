"""Which gradient functions of a program may be computed from parts of the batch."""

import pytest
import tensorflow as tf

from tfdist.synchronous.fit.indivisible import IndivisibleLossError
from tfdist.synchronous.fit.loss_kind import KindReader
from tfdist.synchronous.fit.own_gradients import check_own_gradients

KERNEL = tf.Variable(tf.random.normal([4, 3]))
OUTPUT = tf.Variable(tf.random.normal([3, 1]))


def with_gradient(gradient):
    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), gradient

    return identity


def clipped(d):
    return tf.clip_by_value(d, -0.1, 0.1)


def fits(x, y, kernel):
    return tf.reduce_mean(tf.square(tf.tanh(x @ kernel) @ OUTPUT - y))


def around_kernel(gradient):
    return lambda x, y: fits(x, y, with_gradient(gradient)(KERNEL))


def around_rows(gradient):
    return lambda x, y: fits(with_gradient(gradient)(x @ KERNEL), y, tf.eye(3))


def in_penalty(gradient):
    def loss(x, y):
        kernel = with_gradient(gradient)(KERNEL)
        return tf.reduce_mean(x @ tf.ones([4, 1]) - y) + tf.reduce_sum(kernel**2)

    return loss


def check(loss):
    def trace(x, y, share):
        reader = KindReader(lambda tensor: tensor is share)
        reader.begin_with([x, y])
        with tf.GradientTape() as tape:
            value = loss(x, y)
        weight = share * tf.ones_like(value)
        sources = [KERNEL, OUTPUT]
        gradients = tape.gradient(value, sources, output_gradients=weight)
        check_own_gradients(reader, sources, gradients, [weight])

    rows = [tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]), tf.TensorSpec([])]
    tf.function(trace, autograph=False).get_concrete_function(*rows)


def of_two_parts(x, y):
    """A weight in two parts along its second axis, one of which has a penalty, too."""
    first, second = tf.split(KERNEL, [2, 1], 1)
    rest = with_gradient(lambda d: -d)(second)
    return fits(x, y, tf.concat([first, rest], 1)) + tf.reduce_sum(second**2)


@pytest.mark.parametrize(
    "loss",
    [
        of_two_parts,
        around_kernel(lambda d: 0.5 * d),
        around_kernel(lambda d: tf.where(KERNEL > 0, d, 0.0)),
        around_kernel(lambda d: tf.eye(4) @ d),
        around_rows(clipped),
        in_penalty(lambda d: -d),
        lambda x, y: around_rows(lambda d: -d)(x, y) + tf.norm(KERNEL),
        lambda x, y: around_kernel(lambda d: -d)(x, y) + in_penalty(lambda d: -d)(x, y),
    ],
)
def test_linear_gradients_add_up(loss):
    check(loss)


@pytest.mark.parametrize("wrap", [around_kernel, in_penalty])
@pytest.mark.parametrize(
    "gradient",
    [
        clipped,
        tf.sign,
        lambda d: tf.clip_by_norm(d, 0.1),
        lambda d: d + 0.01,
        lambda d: d + 0.01 * KERNEL,
    ],
)
def test_others_are_refused(wrap, gradient):
    with pytest.raises(IndivisibleLossError, match="not linear"):
        check(wrap(gradient))
