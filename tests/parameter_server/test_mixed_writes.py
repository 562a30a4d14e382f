"""Variables that a step adds to and sets, or sets to what it had read before."""

import pytest
import tensorflow as tf

from tfdist.parameter_server.steps.mixed_writes import is_added_to_and_set
from tfdist.parameter_server.steps.older_reads import moved_to_older_reads


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
    assert is_added_to_and_set(handle_in(step, v)) == found


def test_a_weight_that_no_optimizer_updates_is_cleared_by_a_move():
    def accumulates(v, x):
        v.assign_add(x)
        v.assign_add(v * tf.cast(x > 1, tf.float32) - v)

    v = tf.Variable(0.0)
    assert is_added_to_and_set(handle_in(accumulates, v), is_weight=True)
    assert not is_added_to_and_set(handle_in(moves_twice, v), is_weight=True)


def handle_in(step, v):
    """Returns the handle of a variable in the graph of a step."""
    function = tf.function(lambda x: step(v, x), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec(v.shape)).graph
    [handle] = [inner for _, inner in graph.captures if inner.dtype == tf.resource]
    return handle


def puts_back(v, x):
    before = tf.identity(v)
    v.assign(before * 0.5)
    v.assign(before)


def puts_back_by_moves(v, x):
    before = tf.identity(v)
    v.assign_add(before * 0.5 - v)
    v.assign_add(before - v)


def puts_back_what_a_branch_scaled(v, x):
    before = tf.identity(v)
    v.assign(tf.cond(x[0] > 1, lambda: before * 0.5, lambda: before))
    v.assign(before)


def puts_back_in_a_branch(v, x):
    before = tf.identity(v)
    v.assign(before * 0.5)
    tf.cond(x[0] > 1, lambda: v.assign(before).read_value(), lambda: tf.identity(v))


def puts_back_in_functions(v, x):
    before = tf.function(lambda: tf.identity(v), autograph=False)()
    set_to = tf.function(lambda value: v.assign(value), autograph=False)
    set_to(x)
    set_to(before)


def puts_back_after_a_loop(v, x):
    before = tf.identity(v)

    def body(i):
        v.assign_sub(x)
        return i + 1

    tf.while_loop(lambda i: i < 3, body, [0])
    v.assign(before)


def puts_a_shard_back(v, x):
    before = tf.concat([tf.identity(v), x], 0)
    v.assign(tf.split(before * 0.5, 2)[0])
    v.assign(tf.split(before, 2)[0])


def goes_half_the_way_back(v, x):
    before = tf.identity(v)
    v.assign_sub(x)
    v.assign_add(0.5 * (before - v))


def trains(v, x, update=lambda v, gradient: v.assign_sub(gradient)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * x) + tf.reduce_sum(v * v)
    gradient = tape.gradient(loss, v)
    v.assign_sub(v * 0.01)
    update(v, gradient)
    v.assign(tf.maximum(v, 0.0))


def trains_by_setting(v, x):
    trains(v, x, lambda v, gradient: v.assign(v - gradient))


def trains_by_setting_anew(v, x):
    trains(v, x, lambda v, gradient: v.assign(gradient * x))


def trains_by_the_gradient_of_a_function(v, x):
    square = tf.function(lambda: tf.reduce_sum(v * v * x), autograph=False)
    with tf.GradientTape() as tape:
        loss = square()
    gradient = tape.gradient(loss, v)
    v.assign_sub(v * 0.01)
    v.assign(-gradient)


def averages_what_an_average_gave(v, x):
    for _ in range(2):
        x = (x - v) * 2.0
        mean = tf.reduce_mean(x) * tf.ones([2])
        v.assign_add((v * 0.9 + mean * 0.1) - v)


def perturbs(v, x):
    v.assign_add(x)
    v.assign_sub(x)


def sets_in_either_branch(v, x):
    before = tf.identity(v)
    tf.cond(
        x[0] > 1,
        lambda: v.assign(before * 0.5).read_value(),
        lambda: v.assign(before).read_value(),
    )


def chooses(v, x):
    v.assign_sub(x)
    now = tf.identity(v)
    v.assign(tf.where(x > 1, x, now))


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (puts_back, True),
        (puts_back_by_moves, True),
        (puts_back_what_a_branch_scaled, True),
        (puts_back_in_a_branch, True),
        (puts_back_in_functions, True),
        (puts_back_after_a_loop, True),
        (puts_a_shard_back, True),
        (goes_half_the_way_back, True),
        *(
            (each, False)
            for each in (trains, trains_by_setting, trains_by_setting_anew)
        ),
        (trains_by_the_gradient_of_a_function, False),
        (averages_what_an_average_gave, False),
        *((each, False) for each in (perturbs, sets_in_either_branch, chooses)),
    ],
)
def test_what_a_step_moves_to_an_older_read(step, found):
    assert (
        bool(moved_to_older_reads([handle_in(step, tf.Variable([1.0, 2.0]))])) == found
    )
