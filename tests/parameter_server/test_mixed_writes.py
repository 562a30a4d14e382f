"""Variables to which a step adds, and which it also sets."""

import pytest
import tensorflow as tf

from tfdist.parameter_server.steps.mixed_writes import added_to_and_set


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
    assert bool(added_to_and_set([handle])) == found


def test_the_graph_is_walked_once_however_many_variables_it_accumulates_in(monkeypatch):
    of = tf.Operation.inputs.fget

    def inputs_asked_for(number):
        variables = [tf.Variable(0.0) for _ in range(number)]

        @tf.function(autograph=False)
        def step(x):
            for v in variables:
                v.assign_add(x)
                # Each depends on all that came before.
                x = tf.tanh(x)
                v.assign_add(x)

        graph = step.get_concrete_function(tf.TensorSpec([])).graph
        asked = []
        with monkeypatch.context() as patch:
            patch.setattr(
                tf.Operation, "inputs", property(lambda o: asked.append(o) or of(o))
            )
            assert not added_to_and_set(inside for _, inside in graph.captures)
        return len(asked)

    assert inputs_asked_for(40) < 2.5 * inputs_asked_for(20)
