"""The audit of every step's graph finds what it looks for."""

import graph_audit
import pytest
import tensorflow as tf

pytestmark = pytest.mark.parameter_server


@pytest.fixture
def variable(strategy):
    with strategy.scope():
        return tf.Variable([1.0, 2.0], name="audited")


def raw(variable):
    """The variable without its guard against lost updates."""
    return variable._v


def problems(function, *allowed):
    function = tf.function(function, autograph=False)
    return graph_audit.problems(function.get_concrete_function(), allowed)


OWN_VALUE = ["audited is set to a value computed from its own"]


def test_set_from_its_own_value(variable):
    def step():
        raw(variable).assign(tf.maximum(raw(variable) * 2.0, 1.0))

    assert problems(step) == OWN_VALUE
    assert problems(step, "^audi") == []
    assert problems(step, "other") == OWN_VALUE


def test_set_inside_of_a_loop_and_a_branch(variable):
    def step():
        read = tf.identity(raw(variable))

        def write():
            raw(variable).assign(read + 1.0)
            return 0

        def body(i):
            tf.cond(tf.reduce_any(read > 0.0), write, lambda: 0)
            return (i + 1,)

        tf.while_loop(lambda i: i < 3, body, (tf.constant(0),))

    assert problems(step) == OWN_VALUE


def test_set_by_a_function_of_its_value(variable):
    square = tf.function(lambda value: value * value)
    assert problems(lambda: raw(variable).assign(square(raw(variable)))) == OWN_VALUE


def test_what_cannot_lose_an_update(variable):
    def step():
        raw(variable).assign_add(2.0 * raw(variable))
        raw(variable).assign(tf.zeros(tf.shape(raw(variable) + 1.0)))
        rows = tf.IndexedSlices(tf.ones([1]), tf.constant([0]))
        variable.scatter_sub(rows)

    assert problems(step) == []


def test_rows_added_under_a_shared_lock(variable):
    rows = tf.IndexedSlices(tf.ones([1]), tf.constant([0]))

    def step():
        raw(variable).scatter_add(rows)

    assert problems(step) == ["ResourceScatterAdd writes audited unlocked"]


def test_variable_of_the_chief():
    outside = tf.Variable(1.0, name="outside")
    (problem,) = problems(lambda: outside.assign_add(1.0))
    assert problem.startswith("outside lives on ")
