"""Variables to which a step adds, and which it also sets."""

import keras
import pytest
import tensorflow as tf

from tfdist.parameter_server.steps.kept_gradients import keeping_gradients
from tfdist.parameter_server.steps.mixed_writes import (
    is_added_to_and_set,
    is_set_at_a_count,
)

ops = keras.ops


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


def keeps_a_sum_or_clears_in_branches(v, x):
    total = v + x
    tf.cond(x > 1, lambda: v.assign(0.0), lambda: v.assign(total))


def clips_what_it_counts(v, x):
    v.assign_add(1.0)
    v.assign(tf.minimum(v, 10.0))


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


def averages_now_and_then(v, x):
    v.assign_add(tf.where(x > 1, (x - v) * 0.1, 0.0))


def descends_by_hand(v, x):
    with tf.GradientTape() as tape:
        loss = tf.square(v * x)
    v.assign_sub(0.1 * tape.gradient(loss, v))
    v.assign(tf.clip_by_value(v, -1.0, 1.0))


def is_found(step, dtype=tf.float32):
    v = tf.Variable(tf.ones([], dtype))
    function = tf.function(lambda x: step(v, x), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([], dtype)).graph
    [(_, handle)] = graph.captures
    return is_added_to_and_set(handle, {})


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (accumulates, True),
        (accumulates_and_subtracts, True),
        (accumulates_and_clears_in_a_branch, True),
        (adds_in_a_function, True),
        (keeps_a_sum_or_clears_in_branches, True),
        (clips_what_it_counts, True),
        *((each, False) for each in (counts, sets, moves_twice, moves_and_sets)),
        *((each, False) for each in (averages, averages_now_and_then)),
        (descends_by_hand, False),
    ],
)
def test_what_a_step_adds_to_and_sets(step, found):
    assert is_found(step) == found


def flag(x):
    return tf.cast(x > 1, x.dtype)


@tf.function(autograph=False)
def folded(own, x, keep):
    return (own + x) * keep


def blended(own, other, share):
    return own * (1 - share) + other * share


def looked_at_in_a_branch(v, x):
    return tf.cond(x > 1, lambda: tf.zeros([]), lambda: v + x)


ACCUMULATES = {
    "where": lambda v, x: tf.where(x > 1, 0.0, v + x),
    "where_of_keras": lambda v, x: ops.where(x > 1, ops.zeros_like(v), ops.add(x, v)),
    "first_of_the_next": lambda v, x: tf.where(x > 1, x, v + x),
    "reset_first": lambda v, x: tf.where(x > 1, 0.0, v) + x,
    "product": lambda v, x: (v + x) * (1 - flag(x)),
    "product_by_not": lambda v, x: tf.cast(tf.logical_not(x > 1), x.dtype) * (v + x),
    "product_by_where": lambda v, x: (v + x) * tf.where(x > 1, 0.0, 1.0),
    "product_first": lambda v, x: v * (1 - flag(x)) + x,
    "product_of_integers": lambda v, x: (
        (v + x) * tf.cast(1 - tf.cast(x > 1, tf.int32), x.dtype)
    ),
    "finite_gradients": lambda v, x: (
        (v + x * tf.cast(tf.math.is_finite(x), x.dtype)) * (1 - flag(x))
    ),
    "branch": looked_at_in_a_branch,
    "branch_of_keras": lambda v, x: ops.cond(x > 1, lambda: x * 0, lambda: x + v),
    "function": lambda v, x: folded(v, x, 1 - flag(x)),
    "branch_in_a_function": lambda v, x: tf.function(
        lambda: looked_at_in_a_branch(v, x), autograph=False
    )(),
    "shards": lambda v, x: tf.split(
        tf.where(x > 1, 0.0, tf.concat([[1.0], tf.reshape(v, [1])], 0) + x), [1, 1]
    )[1][0],
    "many_terms": lambda v, x: tf.where(x > 1, 0.0, sum([x] * 500, v)),
    "decayed": lambda v, x: tf.where(x > 1, 0.9 * v, tf.where(x > 2, 0.0, v - x)),
}
GOES_ON = {
    "sum": lambda v, x: v + x,
    "reset": lambda v, x: tf.zeros([]),
    "counter": lambda v, x: v + 1,
    "counter_with_reset": lambda v, x: tf.where(x > 1, 0.0, v + 1),
    "counter_in_a_circle": lambda v, x: (v + 1) * (1 - flag(v)),
    "counter_by_modulus": lambda v, x: (v + 1) % 3,
    "seed": lambda v, x: (v + 1) * 5387 % 933199,
    "soft_target": lambda v, x: 0.005 * x + (1 - 0.005) * v,
    "hard_target": lambda v, x: tf.where(x > 1, x, v),
    "hard_target_by_product": lambda v, x: blended(v, x, flag(x)),
    "hard_target_by_two_masks": lambda v, x: v * (1 - flag(x)) + x * flag(x),
    "hard_target_in_a_branch": lambda v, x: tf.cond(x > 1, lambda: x, lambda: v + 0),
    "average": lambda v, x: v * 0.9 + x * 0.1,
    "average_by_step": lambda v, x: v * (1 - 1 / x) + x / x,
    "average_of_all": lambda v, x: (v * x + x) / (x + 1),
    "average_from_the_first": lambda v, x: tf.where(x > 1, x, v * 0.9 + x * 0.1),
    "average_by_decay": lambda v, x: v * tf.where(x > 1, 0.0, 0.9) + x * 0.1,
    "average_with_restarts": lambda v, x: v * 0.9 * flag(x) + x,
    "difference": lambda v, x: v + 0.1 * (x - v),
    "lookahead": lambda v, x: tf.where(x > 1, v + 0.5 * (x - v), v),
    "now_and_then": lambda v, x: tf.where(x > 1, v + x, v),
    "normalized": lambda v, x: (v + x) / tf.norm(v + x),
    "spectral": lambda v, x: tf.math.l2_normalize(v * x),
    "scale": lambda v, x: tf.where(x > 1, 2 * v, v / 2),
    "scale_by_steps": lambda v, x: tf.where(x > 1, v + x, v * 0.5),
    "maximum": lambda v, x: tf.maximum(v, x),
    "multiplier": lambda v, x: tf.maximum(0.0, v + x),
    "bank": lambda v, x: tf.concat([[x], [v]], 0)[0],
    "best": lambda v, x: tf.where(x < v, x, v),
    "mask": lambda v, x: v * flag(x),
    "drawn_back": lambda v, x: tf.where(x > 1, x, v - 0.1 * tf.tanh(v * x)),
}


@pytest.mark.parametrize("compute", ACCUMULATES.values(), ids=ACCUMULATES)
def test_a_sum_that_one_assignment_resets(compute):
    assert is_found(lambda v, x: v.assign(compute(v, x)))


@pytest.mark.parametrize("compute", GOES_ON.values(), ids=GOES_ON)
def test_a_value_that_is_no_sum_with_resets(compute):
    assert not is_found(lambda v, x: v.assign(compute(v, x)))


def at_the_next(count, add=1):
    count.assign_add(add)
    return count % 3


def after_the_last(count):
    count.assign(tf.where(count + 1 >= 3, 0, count + 1))
    return count + 0


COUNTED = {
    "scatter": lambda v, count, x: v.scatter_nd_update([[at_the_next(count)]], [x]),
    "rows": lambda v, count, x: [
        v.scatter_update(tf.IndexedSlices(x, count + 0)),
        count.assign_add(1),
    ],
    "slice": lambda v, count, x: v[at_the_next(count)].assign(x),
    "several": lambda v, count, x: v.scatter_nd_update(
        tf.expand_dims((at_the_next(count, 2) + tf.range(2)) % 3, 1), [x, x]
    ),
    "value": lambda v, count, x: v.assign(
        tf.tensor_scatter_nd_update(v, [[at_the_next(count)]], [x])
    ),
    "value_of_keras": lambda v, count, x: v.assign(
        ops.scatter_update(v, [[at_the_next(count)]], [x])
    ),
    "set_count": lambda v, count, x: v[after_the_last(count)].assign(x),
    "in_a_branch": lambda v, count, x: tf.cond(
        x > 1,
        lambda: v.scatter_nd_update([[at_the_next(count)]], [x]) + 0,
        lambda: v + 0,
    ),
    "outside_of_a_branch": lambda v, count, x: (
        lambda place: tf.cond(
            x > 1, lambda: v.scatter_nd_update([[place]], [x]) + 0, lambda: v + 0
        )
    )(at_the_next(count)),
}
NOT_COUNTED = {
    "given": lambda v, count, x: v.scatter_nd_update([[tf.cast(x, tf.int32)]], [x]),
    "by_a_count_that_the_chief_sets": lambda v, count, x: v[count % 3].assign(x),
    "when": lambda v, count, x: v.scatter_nd_update(
        [[tf.cast(x, tf.int32)]], [tf.cast(at_the_next(count), x.dtype)]
    ),
    "added": lambda v, count, x: v.scatter_nd_add([[at_the_next(count)]], [x]),
    "nearest": lambda v, count, x: v.scatter_nd_update(
        [[tf.argmin(tf.abs(v - x * tf.cast(at_the_next(count), x.dtype)))]], [x]
    ),
    "bank": lambda v, count, x: v.assign(tf.concat([[x], v[:-1]], 0)),
    "now_and_then": lambda v, count, x: v.assign(
        tf.where(at_the_next(count) == 0, x, v)
    ),
    "mask": lambda v, count, x: v.assign(
        tf.tensor_scatter_nd_update(tf.zeros(3), [[at_the_next(count)]], [x])
    ),
}


@pytest.mark.parametrize("name", [*COUNTED, *NOT_COUNTED])
def test_a_part_that_a_step_sets_at_a_count(name):
    v, count = tf.Variable(tf.zeros(3)), tf.Variable(0)
    step = (COUNTED | NOT_COUNTED)[name]
    function = tf.function(lambda x: step(v, count, x), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([])).graph
    inside = {id(outer): inner for outer, inner in graph.captures}
    found = is_set_at_a_count(inside[id(v.handle)], {}, {})
    assert found == (name in COUNTED)
    assert not is_added_to_and_set(inside[id(v.handle)], {})


def adds_to_all(variables, x):
    for v in variables:
        v.assign_add(x)
        # Each depends on all that came before.
        x = tf.tanh(x)
        v.assign_add(x)


def sets_a_part_of_all(variables, x):
    place = tf.cast(x, tf.int32)
    for v in variables:
        v.scatter_nd_update([place], x)
        place = (place + 1) % 3


@pytest.mark.parametrize("write", [adds_to_all, sets_a_part_of_all])
def test_the_graph_is_walked_once_however_many_variables_it_writes(monkeypatch, write):
    of = tf.Operation.inputs.fget

    def inputs_asked_for(number):
        variables = [tf.Variable([0.0]) for _ in range(number)]
        step = tf.function(lambda x: write(variables, x), autograph=False)
        graph = step.get_concrete_function(tf.TensorSpec([1])).graph
        asked, behind, counted = [], {}, {}
        with monkeypatch.context() as patch:
            patch.setattr(
                tf.Operation, "inputs", property(lambda o: asked.append(o) or of(o))
            )
            for _, inside in graph.captures:
                assert not is_added_to_and_set(inside, behind)
                assert not is_set_at_a_count(inside, behind, counted)
        return len(asked)

    assert inputs_asked_for(40) < 2.5 * inputs_asked_for(20)


K = 3


class Keeping:
    """A weight, and what a step may keep of its gradients."""

    def __init__(self):
        self.w = tf.Variable(tf.ones(2))
        self.other, self.another, self.slot = (
            tf.Variable(tf.zeros(2), trainable=False) for _ in range(3)
        )
        self.queue = tf.Variable(tf.zeros((K, 2)), trainable=False)
        self.norms = tf.Variable(tf.zeros(8), trainable=False)
        self.count = tf.Variable(0)

    def at_last(self):
        self.count.assign_add(1)
        return tf.equal(self.count % K, 0)

    def full(self):
        return tf.cast(self.at_last(), tf.float32)

    def update(self, gradient):
        # As TensorFlow sums over the replicas of a step, here one.
        self.w.assign_sub(tf.identity_n([gradient, gradient])[1])

    def update_in_branch(self, *parts):
        def update():
            self.update(tf.add_n([tf.identity(each) for each in parts]) / K)
            return 0

        tf.cond(self.at_last(), update, lambda: 0)


def passes_a_sum_on(m, g):
    m.other.assign(m.another + g)
    full = m.full()
    m.update(m.other * full / K)
    m.another.assign(m.other * (1 - full))


def passes_a_sum_on_at_once(m, g):
    full = m.full()
    total = m.another + g
    m.update(total * (full / K))
    m.other.assign(total * (1 - full))
    m.another.assign(m.other)


def keeps_the_last(m, g):
    m.update((m.another + m.other + g) * m.full() / K)
    m.another.assign(m.other)
    m.other.assign(g)


def keeps_the_last_for_where(m, g):
    m.update(tf.where(m.at_last(), m.other + g, tf.zeros(2)))
    m.other.assign(g)


def keeps_the_last_for_a_branch(m, g):
    total = tf.cond(m.at_last(), lambda: m.other + g, lambda: tf.zeros(2))
    m.update(tf.clip_by_norm(total, 1.0))
    m.other.assign(g)


def chooses_by_where(m, g):
    for i, each in enumerate((m.other, m.another)):
        each.assign(tf.where(tf.equal(m.count % K, i), g, each))
    m.update((m.other + m.another + g) * m.full() / K)


def chooses_by_a_case(m, g):
    def put(v):
        return lambda: v.assign(g).read_value()

    tf.switch_case(m.count % 2, [put(m.other), put(m.another)])
    m.update_in_branch(m.other, m.another)


def queues(m, g):
    m.queue.assign(tf.concat([m.queue[1:], [g]], 0))
    m.update(tf.reduce_mean(m.queue, 0) * m.full())


def queues_by_roll(m, g):
    rolled = tf.roll(m.queue, 1, 0)
    m.queue.assign(tf.tensor_scatter_nd_update(rolled, [[0]], [g]))
    m.update_in_branch(tf.reduce_sum(m.queue, 0))


def queues_clipped(m, g):
    m.queue.assign(tf.concat([m.queue[1:], [g / tf.maximum(tf.norm(g), 1.0)]], 0))
    m.update(tf.reduce_mean(m.queue, 0) * m.full())


def remembers_what_was_done(m, g):
    m.other.assign_add(g)

    def update():
        total = tf.identity(m.other)
        m.update((total - m.another) / K)
        return m.another.assign(total).read_value()

    tf.cond(m.at_last(), update, lambda: tf.zeros(2))


def keeps_in_a_function(m, g):
    tf.function(lambda g: m.other.assign(g), autograph=False)(g)
    tf.function(lambda: m.update_in_branch(m.other, g), autograph=False)()


def updates_by_a_slot(m, g):
    m.slot.assign_add((m.other * m.full() - m.slot) * 0.1)
    m.update(m.slot)
    m.other.assign(g)


def passes_within_a_step(m, g):
    m.other.assign(g)
    m.update(m.other)


def climbs_by_what_it_saved(m, g):
    m.other.assign(g * (0.05 / (tf.norm(g) + 1e-12)))
    m.update(-m.other)
    m.update(m.other + g)


def keeps_only(m, g):
    m.other.assign(g)
    m.update(g * m.full())


def averages_gradients(m, g):
    m.other.assign(0.5 * m.other + g)
    m.update(m.other * m.full())


def extrapolates(m, g):
    m.update(2 * g - m.other)
    m.other.assign(g)


def reduces_variance(m, g):
    m.other.assign(tf.where(m.at_last(), g, m.other))
    m.update(g - m.other)


def clips_by_its_history(m, g):
    norm = tf.linalg.global_norm([g])
    m.norms.assign(tf.concat([m.norms[1:], [norm]], 0))
    limit = tf.sort(m.norms)[1]
    m.update(m.full() * g * tf.minimum(1.0, limit / norm))


def clips_by_the_mean_of_its_history(m, g):
    norm = tf.reduce_sum(g * g)
    m.norms.assign(tf.concat([m.norms[1:], [norm]], 0))
    m.update(m.full() * g * tf.reduce_mean(m.norms) / norm)


def climbs_and_descends(m, g):
    climb = g * (0.05 / (tf.norm(g) + 1e-12))
    m.update(-climb)
    m.update(climb + g)


def scales_the_loss(m, g):
    finite = tf.reduce_all(tf.math.is_finite(g))
    scale = m.norms[0]
    m.norms.assign(tf.where(finite, m.norms * 2, m.norms / 2))
    m.update(tf.where(finite, g / scale, 0.0))


def copies_weights(m, g):
    m.update(g)
    m.other.assign(tf.where(m.at_last(), m.w, m.other))
    m.update(0.1 * m.full() * (m.w - m.other))


def measures(m, g):
    m.norms.assign(tf.fill([8], tf.norm(g)))
    m.update(g)


KEEPS = {
    passes_a_sum_on: "other another",
    passes_a_sum_on_at_once: "other another",
    keeps_the_last: "other another",
    **dict.fromkeys([keeps_the_last_for_where, keeps_the_last_for_a_branch], "other"),
    **dict.fromkeys([chooses_by_where, chooses_by_a_case], "other another"),
    **dict.fromkeys([queues, queues_by_roll, queues_clipped], "queue"),
    remembers_what_was_done: "another",
    **dict.fromkeys([keeps_in_a_function, updates_by_a_slot], "other"),
    **dict.fromkeys([passes_within_a_step, climbs_by_what_it_saved], "other"),
}
KEEPS_NOTHING = [
    *(keeps_only, averages_gradients, extrapolates, reduces_variance),
    *(clips_by_its_history, clips_by_the_mean_of_its_history, climbs_and_descends),
    *(scales_the_loss, copies_weights, measures),
]


@pytest.mark.parametrize("step", [*KEEPS, *KEEPS_NOTHING])
def test_gradients_that_a_step_keeps_for_another(step):
    m = Keeping()

    def run(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(m.w * x))
        step(m, tape.gradient(loss, m.w))

    function = tf.function(run, autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([2])).graph
    inside = {id(outer): inner for outer, inner in graph.captures}
    given = {
        name: inside[id(v.handle)]
        for name, v in vars(m).items()
        if id(v.handle) in inside
    }
    updated = [given.pop("w"), *([given.pop("slot")] if "slot" in given else [])]
    found = keeping_gradients(graph, list(given.items()), updated)
    assert found == KEEPS.get(step, "").split()
    # The others find none of them.
    for handle in given.values():
        assert not is_added_to_and_set(handle, {})
        assert not is_set_at_a_count(handle, {}, {})
