"""The rule by which a step's assignment becomes an increment, on traced graphs."""

import pytest
import tensorflow as tf

from tfdist.variables.increment import increment

NOW, THEN, D = 10.0, 16.0, [3.0, 5.0]


def apply(compute, trainable=False, num_workers=2, dtype=tf.float32):
    """What a variable becomes that was `NOW` when read and is `THEN` when written."""
    assigned = None

    @tf.function
    def step(view, d):
        nonlocal assigned
        view, d = tf.identity(view, name="view"), tf.identity(d)
        added = increment(compute(view, d), view, trainable, num_workers)
        assigned = added is None
        return (
            compute(view, d) if assigned else tf.fill([2], tf.cast(THEN, dtype)) + added
        )

    view = tf.fill([2], tf.cast(NOW, dtype))
    result = step(view, tf.cast(D, dtype)).numpy().tolist()
    return "assigned" if assigned else result


@pytest.mark.parametrize(
    ("compute", "result"),
    [
        (lambda v, d: v + d, [19.0, 21.0]),
        (lambda v, d: d + v, [19.0, 21.0]),
        (lambda v, d: v - d, [13.0, 11.0]),
        (lambda v, d: tf.identity(tf.cast(v + d, v.dtype)), [19.0, 21.0]),
    ],
)
def test_a_sum_with_the_view_adds_the_other_term(compute, result):
    assert apply(compute) == result


def test_an_exact_increment_does_not_depend_on_the_view():
    # 2**24 + 1 is not a float32: view + d - view would lose the step.
    big = tf.constant(float(2**24))

    @tf.function
    def step(view):
        view = tf.identity(view)
        return increment(view + 1.0, view, False, 2)

    assert step(big).numpy() == 1.0


def test_a_slow_decay_is_an_increment_by_what_changed():
    # 0.9 * 10 + 0.1 * d - 10 is d/10 - 1, added to 16.
    result = apply(lambda v, d: v * 0.9 + d * 0.1)
    assert result == pytest.approx([15.3, 15.5], rel=1e-6)


def test_a_decay_that_workers_together_would_overshoot_is_assigned():
    assert apply(lambda v, d: v * 0.9 + d, num_workers=4) != "assigned"
    assert apply(lambda v, d: v * 0.9 + d, num_workers=5) == "assigned"
    assert apply(lambda v, d: v * 0.5 + d) == "assigned"


@pytest.mark.parametrize(
    "compute",
    [
        lambda v, d: d,
        lambda v, d: d - v,
        lambda v, d: v * d,
        lambda v, d: v / d,
        lambda v, d: v * 2.0,
        lambda v, d: tf.maximum(v, d),
        lambda v, d: tf.where(d > 4.0, d, v),
        lambda v, d: v * d[0] + d,
    ],
    ids=["set", "from", "product", "ratio", "double", "maximum", "choice", "unknown_b"],
)
def test_what_is_not_additive_is_assigned(compute):
    assert apply(compute) == "assigned"


@pytest.mark.parametrize(
    ("compute", "result"),
    [
        (lambda v, d: v * d, [36.0, 56.0]),
        (lambda v, d: v / (d - d + 2.0), [11.0, 11.0]),
        (lambda v, d: tf.maximum(v, d + 8.0), [17.0, 19.0]),
        (lambda v, d: tf.minimum(tf.maximum(v, d + 8.0), d + 8.0), [17.0, 19.0]),
    ],
)
def test_a_weights_projection_is_an_increment(compute, result):
    assert apply(compute, trainable=True) == result


def test_a_weight_computed_anew_is_assigned():
    assert apply(lambda v, d: d * 2.0, trainable=True) == "assigned"


def test_integers_are_exact_and_booleans_are_assigned():
    assert apply(lambda v, d: v + d, dtype=tf.int64) == [19, 21]

    @tf.function
    def step(view):
        view = tf.identity(view)
        assert increment(tf.logical_not(view), view, False, 2) is None
        return view

    step(tf.constant([True]))


def test_a_smaller_term_is_added_to_each_element():
    # assign_add wants the variable's own shape.
    assert apply(lambda v, d: v + d[0]) == [19.0, 19.0]
    assert apply(lambda v, d: d[:1] - 1.0 + v) == [18.0, 18.0]
