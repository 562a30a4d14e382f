"""A tape goes back through exchanges in one order, the same on every replica."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.synchronous.replica import collectives


class Step(SimpleNamespace):
    def proceed(self, token):
        self.token = token


@pytest.fixture
def sizes(monkeypatch):
    """The size of each exchange, in order, of a single replica."""
    found = []

    def sum_tensors(tensors):
        found.extend(each.shape[0] for each in tensors)
        return [tf.identity(each) for each in tensors]

    monkeypatch.setattr(collectives, "sum_tensors", sum_tensors)
    return found


def total(weights):
    step = Step(token=tf.zeros([]))
    sums = [collectives.differentiable_sums(step, [each])[0] for each in weights]
    return sum(tf.reduce_sum(each**2) for each in reversed(sums))


@pytest.mark.parametrize("order", [(1, 2, 3, 4, 5), (3, 5, 1, 4, 2)])
def test_gradients_take_exchanges_in_reverse_order(sizes, order):
    weights = [tf.Variable(tf.ones([size])) for size in order]

    @tf.function
    def differentiate():
        with tf.GradientTape() as tape:
            value = total(weights)
        return tape.gradient(value, weights)

    gradients = differentiate()
    assert sizes == [*order, *reversed(order)]
    assert all(tf.reduce_all(each == 2.0) for each in gradients)


def test_gradients_of_gradients_do_so_too(sizes):
    weights = [tf.Variable(tf.ones([size])) for size in (1, 2, 3)]

    @tf.function
    def differentiate():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                value = total(weights)
            squares = [tf.reduce_sum(g**2) for g in tape.gradient(value, weights)]
        return outer.gradient(squares, weights)

    gradients = differentiate()
    assert all(tf.reduce_all(each == 8.0) for each in gradients)
    assert sizes[:6] == [1, 2, 3, 3, 2, 1]
    # Back through the gradient first, and then through what it is of.
    assert sizes[6:] == [1, 2, 3, 3, 2, 1]
