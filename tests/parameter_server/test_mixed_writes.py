"""Variables to which a step adds, and which it also sets."""

import pytest
import tensorflow as tf

from tfdist.parameter_server.steps.mixed_writes import is_added_to_and_set


def accumulates(v, x):
    v.assign_add(x)
    v.assign(v * tf.cast(x > 1, tf.float32))


def accumulates_and_subtracts(v, x):
    v.assign_add(x)
    v.assign_sub(v * tf.cast(x > 1, tf.float32))


def accumulates_and_clears_in_a_branch(v, x):
    v.assign_add(x)
    tf.cond(x > 1, lambda: v.assign(0.0).read_value(), lambda: 0.0)


def adds_in_a_function(v, x):
    v.assign(0.0)
    tf.function(lambda: v.assign_add(x), autograph=False)()


def counts(v, x):
    v.assign_add(1.0)
    v.assign_add(x)
    return v * 2.0


def sets(v, x):
    v.assign(v * x)
    v.assign(x)


def moves_twice(v, x):
    v.assign_add((v * 0.9 + x * 0.1) - v)
    v.assign_add((v * 0.9 + x * 0.1) - v)


def moves_and_sets(v, x):
    v.assign_add(x - v)
    v.assign(x)


def averages(v, x):
    v.assign_add((x - v) * 0.1)


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (accumulates, True),
        (accumulates_and_subtracts, True),
        (accumulates_and_clears_in_a_branch, True),
        (adds_in_a_function, True),
        *((each, False) for each in (counts, sets, moves_twice, moves_and_sets)),
        (averages, False),
    ],
)
def test_what_a_step_adds_to_and_sets(step, found):
    v = tf.Variable(0.0)
    function = tf.function(lambda x: step(v, x), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([])).graph
    [(_, handle)] = graph.captures
    assert is_added_to_and_set(handle) == found
