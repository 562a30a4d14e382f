"""The kind of a loss, read from its graph alone: means, sums, or neither."""

import keras
import pytest
import tensorflow as tf

from tfdist.keras.graph import constant
from tfdist.synchronous.reader.decomposed import computed_from_parts
from tfdist.synchronous.reader.indivisible import IndivisibleLossError
from tfdist.synchronous.reader.reduction import Reduction
from tfdist.synchronous.reader.reduction_reader import ReductionReader

WEIGHT = tf.Variable(tf.ones([3, 3]))
NORMALIZATION = keras.layers.BatchNormalization()
NORMALIZATION.build((None, 3))
CASES = {}


def case(kind):
    def register(function):
        CASES[function.__name__] = (kind, function)
        return function

    return register


def named(kind, **functions):
    CASES.update({name: (kind, each) for name, each in functions.items()})


def kind_of(function, **options):
    found = []

    def trace(x, y):
        reader = ReductionReader(**options)
        found.append(reader.kind_of(tf.convert_to_tensor(function(x, y))))

    spec = tf.TensorSpec([None, 3])
    tf.function(trace, autograph=False).get_concrete_function(spec, spec)
    return found[0]


@case(Reduction.MEAN)
def keras_loss_of_a_dynamic_shape(x, y):
    length = tf.random.uniform([], 1, 4, tf.int32)
    return keras.losses.MeanAbsoluteError()(x[:, :length, None], y[:, :length, None])


@case(Reduction.MEAN)
def several_means_and_a_regularizer(x, y):
    regularizer = keras.regularizers.L2(0.1)(WEIGHT)
    terms = [keras.losses.MeanSquaredError()(x, y), regularizer, 0.5 * mean(x, y)]
    return sum(terms) / 2.0 + keras.ops.sum(terms)


@case(Reduction.MEAN)
def sum_over_the_number_of_examples(x, y):
    n = tf.cast(tf.shape(x)[0], tf.float32)
    return tf.reduce_sum(x * y) / tf.maximum(n, 1.0) + tf.reduce_sum(x) / tf.cast(
        tf.size(x), tf.float32
    )


@case(Reduction.OTHER)
def masked_mean(x, y):
    mask = tf.cast(y > 0, tf.float32)
    return tf.reduce_sum(x * mask) / tf.reduce_sum(mask)


@case(Reduction.MIXED)
def against_all_others(x, y):
    logits = keras.ops.matmul(x, keras.ops.transpose(y))
    return -keras.ops.mean(keras.ops.diagonal(keras.ops.log_softmax(logits, axis=1)))


@case(Reduction.MIXED)
def one_number_per_step_of_sequences(x, y):
    length = tf.random.uniform([], 1, 4, tf.int32)
    return tf.reduce_sum(tf.reduce_mean(x[:, :length], axis=0))


@case(Reduction.SAME)
def weights_by_place(x, y):
    places = tf.range(tf.shape(x[:, : tf.cast(WEIGHT[0, 0], tf.int32)])[1])
    return tf.reduce_sum(tf.cast(places, tf.float32))


@tf.function
def doubled(x, factor):
    return factor * 2.0 * tf.reduce_mean(x)


@case(Reduction.MEAN)
def in_a_branch(x, y):
    loss = tf.reduce_mean(x)
    found = []

    def branch():
        found.append(ReductionReader().kind_of(loss * 2.0))
        return loss

    tf.cond(WEIGHT[0, 0] > 0, branch, lambda: loss)
    assert found == [Reduction.MEAN]
    return loss


@case(Reduction.MEAN)
def of_a_branch(x, y):
    # As where a term of a loss begins after some steps.
    late = tf.cond(WEIGHT[0, 0] > 0, lambda: tf.reduce_mean(y), lambda: 0.0)
    return tf.reduce_mean(x) + late


@case(Reduction.UNKNOWN)
def of_a_branch_that_each_replica_draws(x, y):
    drawn = tf.random.uniform([]) < 0.5
    return tf.cond(drawn, lambda: tf.reduce_mean(y), lambda: 0.0)


def accumulated(turn, turns):
    return tf.while_loop(
        lambda i, _: i < turns, lambda i, total: (i + 1, turn(total)), [0, 0.0]
    )[1]


def mean(x, y):
    return tf.reduce_mean(tf.square(x - y))


def keras_sum(x, y):
    return keras.losses.MeanSquaredError(reduction="sum")(x, y)


named(
    Reduction.MEAN,
    mean=mean,
    mean_of_sums_by_example=lambda x, y: tf.reduce_mean(tf.reduce_sum(x * y, axis=1)),
    keras_loss=lambda x, y: keras.losses.MeanSquaredError()(x, y),
    mean_times_a_weight=lambda x, y: mean(x, y) * tf.exp(WEIGHT[0, 0]),
    keras_layer_that_normalizes=lambda x, y: tf.reduce_mean(
        NORMALIZATION(x, training=True)
    ),
    in_a_function=lambda x, y: doubled(x, WEIGHT[0, 0]) + doubled(y, tf.constant(1.0)),
)
named(
    Reduction.SUM,
    keras_sum=keras_sum,
    sum_of_squares=lambda x, y: 0.5 * tf.reduce_sum((x - y) ** 2) + tf.nn.l2_loss(x),
    sum_by_product=lambda x, y: tf.einsum("ij,ij->", x, y),
    mean_times_the_number_of_examples=lambda x, y: (
        mean(x, y) * tf.cast(tf.shape(x)[0], tf.float32)
    ),
    sum_of_a_branch=lambda x, y: tf.cond(
        WEIGHT[0, 0] > 0, lambda: tf.reduce_sum(x), lambda: tf.reduce_sum(y)
    ),
)
named(
    Reduction.ROWS,
    keras_loss_by_example=lambda x, y: keras.losses.MeanSquaredError(reduction=None)(
        x, y
    ),
    noise_for_each_example=lambda x, y: tf.random.normal(tf.shape(x)),
)
named(
    Reduction.OTHER,
    sum_over_a_sum=lambda x, y: tf.reduce_sum(x * y) / tf.reduce_sum(y),
    root_of_a_mean=lambda x, y: tf.sqrt(mean(x, y)),
    number_of_examples_squared=lambda x, y: (
        tf.shape(x)[0] ** 2 + tf.shape(x)[0] * tf.shape(y)[0]
    ),
    root_beside_a_mean=lambda x, y: tf.sqrt(mean(x, y)) + mean(x, y),
    keras_loss_that_divides_by_sums=lambda x, y: keras.losses.Dice()(x, y),
    in_a_function_of_a_mean=lambda x, y: doubled(x, tf.reduce_mean(y)),
)
named(
    Reduction.LINEAR,
    mean_and_sum=lambda x, y: tf.reduce_mean(x) + tf.reduce_sum(y),
    number_of_examples_and_one=lambda x, y: tf.shape(x)[0] + 1,
    sum_times_the_number_of_examples=lambda x, y: (
        keras_sum(x, y) * tf.cast(tf.shape(x)[0], tf.float32)
    ),
)
named(
    Reduction.MIXED,
    sum_of_those_selected=lambda x, y: tf.reduce_sum(tf.boolean_mask(x, y[:, 0] > 0)),
    another_shape=lambda x, y: tf.reduce_mean(
        tf.cast(tf.equal(x[:, 0], y[:, :1]), tf.float32)
    ),
)
named(
    Reduction.UNKNOWN,
    greatest=lambda x, y: tf.reduce_max(x),
    of_a_branch_that_the_examples_choose=lambda x, y: tf.cond(
        tf.reduce_mean(x) > 0, lambda: tf.reduce_mean(y), lambda: 0.0
    ),
    accumulated_means=lambda x, y: accumulated(
        lambda total: 0.9 * total + 0.1 * tf.reduce_mean(x), 3
    ),
)
named(
    Reduction.TAKEN,
    first_example=lambda x, y: x[0, 0],
    shuffled=lambda x, y: tf.reduce_mean(x * keras.random.shuffle(y)),
)
named(
    Reduction.SAME,
    regularizer=lambda x, y: tf.reduce_sum(WEIGHT**2),
    length_of_an_example=lambda x, y: tf.shape(x)[1],
    accumulated_weights=lambda x, y: accumulated(
        lambda total: 0.9 * total + WEIGHT[0, 0], 3
    ),
)
named(
    Reduction.DRAWN,
    noise=lambda x, y: tf.reduce_sum(WEIGHT * tf.random.normal([3, 3])),
    accumulated_noise=lambda x, y: accumulated(
        lambda total: total + tf.random.normal([]), 3
    ),
    constant_that_each_replica_draws=lambda x, y: tf.cond(
        tf.random.uniform([]) < 0.5, lambda: 1.0, lambda: 0.0
    ),
)
named(
    Reduction.COUNT,
    number_of_values=lambda x, y: tf.reduce_prod(tf.shape(x[:, :2])),
)


@pytest.mark.parametrize("name", CASES)
def test_kind(name):
    kind, function = CASES[name]
    assert kind_of(function) is kind


def test_lengths_of_ragged_values_are_no_multiples_of_the_examples():
    _, function = CASES["number_of_values"]
    assert kind_of(function, has_varying_rows=True) is Reduction.SUM


def test_a_folded_number_has_the_dtype_of_its_tensor():
    """An integer is cut off, as it is when the graph runs."""

    def trace():
        size = tf.cast(tf.constant(1.25) + tf.constant(1.25), tf.int32)
        assert constant(size + size) == 4

    tf.function(trace, autograph=False).get_concrete_function()


def check_refused(loss, words, *shape):
    def trace(x):
        value = loss(x)
        with pytest.raises(IndivisibleLossError, match=words):
            raise ReductionReader().error_of(value)

    spec = tf.TensorSpec([None, *shape, 3])
    tf.function(trace, autograph=False).get_concrete_function(spec)


def test_pairs_on_the_first_axis_are_refused_by_the_line_that_takes_them():
    check_refused(
        lambda x: tf.reduce_mean(tf.square(x[0] - x[1]) @ WEIGHT),
        r"StridedSlice.*made in .*\(anchors, positives\)",
        None,
    )


def test_what_cannot_be_taken_apart_is_named_with_its_line():
    check_refused(
        lambda x: tf.reduce_mean(x) * tf.reduce_max(x),
        r"Max \(Max\), made in .*test_reduction_reader.py, line",
    )


def test_a_package_is_read_like_the_script(tmp_path):
    path = tmp_path / "site-packages" / "package.py"
    path.parent.mkdir()
    path.write_text("def first(x):\n    return x[:2]\n")
    package = {}
    exec(compile(path.read_text(), str(path), "exec"), package)
    check_refused(
        lambda x: tf.reduce_mean(package["first"](x)),
        r"StridedSlice.*site-packages/package.py, line 2.*tfdist.whole_batch\(x\)",
    )


@pytest.mark.parametrize("name", ["against_all_others", "another_shape", "shuffled"])
def test_each_part_counts_as_a_batch_of_its_own(name):
    assert kind_of(CASES[name][1], is_strict=False) is Reduction.MEAN


SHARES = {Reduction.MEAN: 0.25, Reduction.SUM: 1.0, Reduction.SAME: 0.25}


def of_parts(loss):
    """Returns the part of a loss of a quarter of the rows, and its slope along a weight."""
    # On a device that the process still has: another test may have joined a cluster.
    held = tf.Variable(1.0)

    def compute(x):
        weight = held * 2.0
        part, leaves = computed_from_parts(
            ReductionReader(),
            loss(x, weight),
            lambda term, kind: term * SHARES[kind],
            lambda n: 4 * n,
        )
        slopes = tf.gradients(part, leaves, stop_gradients=leaves)
        of_weight = [s for s, t in zip(slopes, leaves, strict=True) if t is weight]
        return part, of_weight

    spec = tf.TensorSpec([None, 3])
    traced = tf.function(compute, autograph=False, input_signature=[spec])
    return traced(tf.ones([2, 3]))


def test_a_sum_of_terms_is_computed_again_from_the_part_of_each():
    part, _ = of_parts(
        lambda x, w: 0.5 * (tf.reduce_mean(x) + tf.reduce_sum(x) - 4.0) / 2.0
    )
    assert float(part) == 0.25 * (0.25 + 6.0 - 1.0)


def test_a_sum_is_multiplied_with_the_number_of_all_examples():
    """As Keras does to the mean of a loss that has a sum in it."""
    part, _ = of_parts(
        lambda x, w: (
            (tf.reduce_mean(x) + tf.reduce_sum(x)) * tf.cast(tf.shape(x)[0], x.dtype)
        )
    )
    assert float(part) == (0.25 + 6.0) * 8.0


def test_a_weight_may_be_a_term_and_a_factor():
    part, (slope,) = of_parts(
        lambda x, w: w * (tf.reduce_mean(x) + tf.reduce_sum(x)) + w
    )
    assert float(part) == 2.0 * (0.25 + 6.0) + 0.5
    assert float(slope) == 0.25 + 6.0 + 0.25


def test_a_term_may_be_computed_from_another():
    def slopes(x):
        mean = 3.0 * tf.reduce_mean(x)
        loss = (mean + tf.reduce_sum(x)) + 2.0 * mean
        part, leaves = computed_from_parts(
            ReductionReader(), loss, lambda term, _: term, lambda n: n
        )
        found = tf.gradients(part, leaves, stop_gradients=leaves)
        # Those of the axis of the terms, and not of the constants in them.
        return [each for each in found if each is not None]

    spec = tf.TensorSpec([None, 3])
    traced = tf.function(slopes, autograph=False, input_signature=[spec])
    assert [float(each) for each in traced(tf.ones([2, 3]))] == [1.0, 1.0, 1.0]
