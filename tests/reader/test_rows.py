"""Which operations keep the examples of a batch apart, and that all others are refused."""

import keras
import pytest
import tensorflow as tf
from keras import ops

from tfdist.synchronous.reader.reduction import REFUSED as REFUSED_KINDS
from tfdist.synchronous.reader.reduction import Reduction
from tfdist.synchronous.reader.reduction_reader import ReductionReader

WEIGHT = tf.Variable(tf.ones([4, 4]))


class OwnSeeds(keras.random.SeedGenerator):
    """Draws another seed on each replica, as one does in a step."""

    last = None

    def next(self, ordered=True):
        self.last = super().next(ordered)
        return self.last


SEED = OwnSeeds(1)
NORMALIZATION = keras.layers.BatchNormalization()
NORMALIZATION.build((None, 4))
RECURRENT = keras.layers.LSTM(4)
RECURRENT.build((None, 4, 1))
ATTENTION = keras.layers.MultiHeadAttention(2, 3)
ATTENTION.build((None, 4, 1), (None, 4, 1))
EINSUM = keras.layers.EinsumDense("btf,fo->bto", (4, 3), bias_axes="o")
EINSUM.build((None, 4, 1))
APART, REFUSED = {}, {}


def apart(function):
    APART[function.__name__] = function


def refused(function):
    REFUSED[function.__name__] = function


def named(register, **functions):
    for name, function in functions.items():
        function.__name__ = name
        register(function)


def number(x):
    return tf.shape(x)[0]


def kind_of(function):
    """Returns the kind of a function of 4 features, 4 targets, and the whole batch's."""
    found = []

    def trace(x, y, whole):
        reader = ReductionReader(
            lambda tensor: (
                Reduction.SAME
                if tensor is whole
                else Reduction.DRAWN
                if tensor is SEED.last
                else None
            )
        )
        reader.begin_with([x, y])
        found.append(reader.kind_of(tf.convert_to_tensor(function(x, y, whole))))

    spec = tf.TensorSpec([None, 4])
    tf.function(trace, autograph=False).get_concrete_function(spec, spec, spec)
    return found[0]


named(
    apart,
    by_element=lambda x, y, w: tf.abs(tf.exp(x) - y) ** 1.5 + WEIGHT[0],
    by_column=lambda x, y, w: x[:, :2] * y[..., 1:3] + y[:, -1, tf.newaxis],
    reversed_columns=lambda x, y, w: x[:, ::-1] - tf.reverse(y, [1]),
    shifted_columns=lambda x, y, w: tf.roll(x, 1, 1) - tf.cumsum(y, -1),
    padded_columns=lambda x, y, w: tf.pad(x, [[0, 0], [1, 2]]),
    all_from_the_first=lambda x, y, w: x[0:] - y,
    product_with_a_weight=lambda x, y, w: tf.matmul(x, WEIGHT) @ WEIGHT,
    products_by_example=lambda x, y, w: tf.einsum("bi,bj->bij", x, y),
    products_of_many_axes=lambda x, y, w: tf.einsum("...i,ij->...j", x, WEIGHT),
    outer=lambda x, y, w: tf.matmul(x[:, :, None], y[:, None]),
    with_all_examples=lambda x, y, w: tf.nn.log_softmax(
        tf.matmul(x, w, transpose_b=True)
    ),
    looked_up_in_all=lambda x, y, w: tf.gather(w, tf.cast(y[:, 0], tf.int32)) - x,
    looked_up=lambda x, y, w: tf.gather(WEIGHT, tf.argmax(y, 1)) - x,
    columns_by_number=lambda x, y, w: tf.gather(x, [2, 0], axis=1),
    column_of_each=lambda x, y, w: tf.gather(x, tf.argmax(y, 1), batch_dims=1),
    along_an_axis=lambda x, y, w: ops.take_along_axis(
        x, ops.argsort(y, axis=1), axis=1
    ),
    sorted_columns=lambda x, y, w: tf.sort(x, 1) - tf.math.top_k(y, 4)[0],
    one_hot=lambda x, y, w: tf.one_hot(tf.argmax(y, 1), 4) * x,
    softmax=lambda x, y, w: tf.nn.softmax(x) * tf.nn.log_softmax(y, 1),
    normalized=lambda x, y, w: tf.nn.l2_normalize(x, 1) - tf.reduce_mean(y, 1, True),
    standardized=lambda x, y, w: (
        (x - tf.reduce_mean(x, 1, True)) / tf.math.reduce_std(x, 1, True)
    ),
    cross_entropy=lambda x, y, w: tf.nn.softmax_cross_entropy_with_logits(y, x),
    sparse_cross_entropy=lambda x, y, w: tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.argmax(y, 1), x
    ),
    stacked=lambda x, y, w: (
        tf.reduce_max(tf.stack([x, y], 1), 1)
        - tf.unstack(tf.stack([x, y], 2), axis=2)[0]
    ),
    side_by_side=lambda x, y, w: sum(tf.split(tf.concat([x, y], 1), 2, 1)),
    real_and_made=lambda x, y, w: (
        tf.concat([x, y], 0) * WEIGHT[0]
        - tf.concat([tf.ones([number(x), 1]), tf.zeros([number(y), 1])], 0)
        - tf.random.uniform(tf.shape(tf.concat([y, x], 0)))
    ),
    twice=lambda x, y, w: tf.tile(x, [2, 1]) - tf.tile(y, [2, 1]),
    each_thrice=lambda x, y, w: tf.repeat(x, 3, 0) - tf.repeat(y, 3, 0),
    copied_to_each=lambda x, y, w: x + tf.tile(WEIGHT[:1], [number(x), 1]),
    broadcast_to_each=lambda x, y, w: tf.concat(
        [tf.broadcast_to(WEIGHT[:1], [number(x), 4]), x], 1
    ),
    repeated_for_each=lambda x, y, w: (
        tf.concat([tf.repeat(WEIGHT[:1], number(x), axis=0), x], 1)
        * ops.repeat(WEIGHT[None, :1, 0], ops.shape(x)[0], axis=0)
    ),
    ones_for_each=lambda x, y, w: (
        x * tf.reshape(tf.ones([number(x), 1, 1]), [number(x), -1])
    ),
    repeated_and_added_up=lambda x, y, w: (
        x
        + tf.reshape(tf.tile(WEIGHT[None, :1], [1, number(x), 1]), [number(x), 2, 2])[
            :, 0, :1
        ]
    ),
    flat=lambda x, y, w: tf.reshape(x, [-1]) - tf.reshape(y, [-1]),
    there_and_back=lambda x, y, w: tf.reshape(tf.reshape(x, [-1, 2]), [-1, 4]) - y,
    back_by_number=lambda x, y, w: (
        tf.reshape(tf.reshape(x, [-1, 1]), [number(x), 4]) - y
    ),
    as_pictures=lambda x, y, w: tf.nn.conv2d(
        tf.reshape(x, [-1, 2, 2, 1]), tf.ones([2, 2, 1, 1]), 1, "SAME"
    ),
    tensordot=lambda x, y, w: tf.tensordot(x[:, :, None], WEIGHT[:1], [[2], [0]]),
    noise=lambda x, y, w: (
        x + tf.random.normal(tf.shape(x)) * tf.random.uniform([number(x), 1])
    ),
    dropout=lambda x, y, w: (
        tf.nn.dropout(x, 0.5) + keras.random.dropout(y, 0.5, seed=SEED)
    ),
    drawn_classes=lambda x, y, w: (
        keras.random.categorical(x, 2, seed=SEED)
        + tf.random.categorical(y, 2, tf.int32)
    ),
    chosen=lambda x, y, w: tf.where(x > 0, x, y * WEIGHT[1]),
    determinants=lambda x, y, w: tf.linalg.det(tf.reshape(x, [-1, 2, 2])),
    by_a_condition=lambda x, y, w: tf.cond(
        WEIGHT[0, 0] > 0, lambda: x, lambda: y * 2.0
    ),
    in_a_function=lambda x, y, w: tf.function(lambda a, b: a[:, 1:] * b[:, :1])(x, y),
    by_a_layer=lambda x, y, w: NORMALIZATION(x, training=True) - y,
    gradient_of_each=lambda x, y, w: (
        tf.gradients(tf.nn.tanh(x @ WEIGHT) * y, x)[0] ** 2
    ),
    recurrent_layer=lambda x, y, w: RECURRENT(x[:, :, None]) - y,
    attention_layer=lambda x, y, w: ATTENTION(x[:, :, None], y[:, :, None]),
    einsum_layer=lambda x, y, w: EINSUM(x[:, :, None]),
)
named(
    refused,
    on_the_second_axis=lambda x, y, w: (
        tf.transpose(tf.matmul(WEIGHT, x, False, True)) - y
    ),
    stacked_before_the_rows=lambda x, y, w: tf.reduce_max(tf.stack([x, y]), 0),
    expanded_before_the_rows=lambda x, y, w: (x[None] - tf.expand_dims(y, 0))[0],
    own_rows_of_all=lambda x, y, w: w[: number(x)] - y,
    own_numbers_of_all=lambda x, y, w: tf.gather(w, tf.range(number(x))) - y,
    own_ranks_of_all=lambda x, y, w: tf.gather(w, tf.argsort(x[:, 0])) - y,
    own_numbers_as_classes=lambda x, y, w: (
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.range(number(x)), tf.matmul(x, w, transpose_b=True)
        )
    ),
    own_numbers_by_keras=lambda x, y, w: keras.losses.sparse_categorical_crossentropy(
        ops.arange(ops.shape(x)[0]), ops.matmul(x, ops.transpose(w))
    ),
    own_numbers_one_hot=lambda x, y, w: (
        tf.eye(number(x), number(w)) * tf.matmul(x, w, transpose_b=True)
    ),
    diagonal=lambda x, y, w: tf.linalg.diag_part(tf.matmul(x, w, transpose_b=True)),
    all_less_own=lambda x, y, w: x - w,
    mixup=lambda x, y, w: x * 0.7 + x[::-1] * 0.3,
    every_other=lambda x, y, w: x[::2],
    the_second_half=lambda x, y, w: x[number(x) // 2 :],
    reverse=lambda x, y, w: tf.reverse(x, [0]) - y,
    roll=lambda x, y, w: tf.roll(x, 1, 0) - y,
    cumulated=lambda x, y, w: tf.cumsum(x) - y,
    weighted_by_position=lambda x, y, w: (
        x[:, 0] * tf.cast(tf.range(number(x)), tf.float32)
    ),
    weighted_by_linspace=lambda x, y, w: x[:, 0] * tf.linspace(0.0, 1.0, number(x)),
    weighted_by_places=lambda x, y, w: tf.cast(tf.where(y[:, 0] > 0), tf.float32),
    parity=lambda x, y, w: tf.where(tf.range(number(x))[:, None] % 2 == 0, x, y),
    padded=lambda x, y, w: tf.pad(x - y, [[0, 2], [0, 0]]),
    scanned=lambda x, y, w: tf.scan(lambda a, e: a * 0.5 + e, x - y, tf.zeros([4])),
    convolved=lambda x, y, w: tf.nn.conv1d(
        (x - y)[None], tf.ones([3, 4, 1]), 1, "SAME"
    ),
    pooled=lambda x, y, w: tf.nn.avg_pool1d((x - y)[None], 2, 2, "VALID"),
    paired_by_reshape=lambda x, y, w: tf.reshape(x, [-1, 8]),
    shuffled=lambda x, y, w: tf.random.shuffle(x) - y,
    ranked=lambda x, y, w: tf.sort(tf.reduce_mean(x, 1))[:, None] - y,
    tiled_against_repeated=lambda x, y, w: tf.tile(x, [2, 1]) - tf.repeat(y, 2, 0),
    centered=lambda x, y, w: x - tf.reduce_mean(x, 0),
    centered_integers=lambda x, y, w: (
        tf.cast(x, tf.int32) - tf.reduce_max(tf.cast(x, tf.int32))
    ),
    over_their_number=lambda x, y, w: x / tf.cast(number(x), tf.float32),
    filled_with_their_number=lambda x, y, w: (
        x * tf.fill([number(x), 1], tf.cast(number(x), tf.float32))
    ),
    pairs=lambda x, y, w: tf.matmul(x, y, transpose_b=True),
    pairs_by_einsum=lambda x, y, w: tf.einsum("bi,ci->bc", x, y),
    pairs_by_broadcast=lambda x, y, w: x[:, None] - y[None],
    softmax_over_examples=lambda x, y, w: tf.nn.softmax(x, 0) * y,
    of_a_python_function=lambda x, y, w: tf.ensure_shape(
        tf.numpy_function(lambda a: a[::-1], [x], tf.float32), [None, 4]
    ),
    folded=lambda x, y, w: tf.foldl(lambda total, each: total + each, x)[None] - y,
    filtered_by_rows=lambda x, y, w: (
        tf.nn.conv2d(tf.ones([1, 9, 9, 1]), tf.reshape(x, [-1, 4, 1, 1]), 1, "SAME")[
            0, :, :, 0
        ]
        - tf.zeros([number(x), 1])
    ),
    of_another_order=lambda x, y, w: (
        tf.zeros([4, number(x)]) + tf.reverse(tf.transpose(x), [1])
    ),
    by_their_number=lambda x, y, w: tf.cond(number(x) > 8, lambda: x, lambda: y),
    by_a_maximum=lambda x, y, w: tf.cond(tf.reduce_max(x) > 8, lambda: x, lambda: y),
    in_a_function=lambda x, y, w: tf.function(lambda a, b: a[::-1] * b)(x, y),
    up_to_the_longest=lambda x, y, w: x[:, : tf.cast(tf.reduce_max(y), tf.int32)],
    up_to_their_number=lambda x, y, w: x[:, : number(x)],
    tiled_by_a_maximum=lambda x, y, w: tf.tile(
        x, [1, tf.cast(tf.reduce_max(y), tf.int32)]
    ),
    padded_to_the_longest=lambda x, y, w: tf.RaggedTensor.from_tensor(
        x, tf.argmax(y, 1)
    ).to_tensor(),
    folded_by_a_sum=lambda x, y, w: tf.reshape(
        x, [number(x), 2, tf.cast(tf.reduce_sum(y), tf.int32)]
    ),
    folded_by_their_number=lambda x, y, w: tf.reshape(
        tf.repeat(x, 2, 1)[:, : tf.cast(WEIGHT[0, 0], tf.int32)], [-1, number(x)]
    ),
    each_of_two_for_each=lambda x, y, w: tf.repeat(WEIGHT[:2], number(x), axis=0)[:, 0],
    copies_on_another_axis=lambda x, y, w: (
        x[:, None] + tf.tile(WEIGHT[None, :1], [1, number(x), 1])
    ),
    a_pattern_for_each=lambda x, y, w: tf.reshape(
        tf.tile(WEIGHT[None], [1, number(x), 1]), [-1, 4]
    ),
    half_of_one=lambda x, y, w: tf.split(x, 2)[0],
    sparse_to_the_longest=lambda x, y, w: tf.sparse.to_dense(
        tf.RaggedTensor.from_tensor(x, tf.argmax(y, 1)).to_sparse()
    ),
    over_ragged_rows=lambda x, y, w: (
        tf.reduce_sum(x)
        / tf.cast(tf.RaggedTensor.from_tensor(x, tf.argmax(y, 1)).nrows(), tf.float32)
    ),
    the_same_noise=lambda x, y, w: (
        x + tf.random.stateless_normal([number(x), 1], [1, 2])
    ),
    the_same_noise_of_a_weight=lambda x, y, w: (
        x
        + tf.random.stateless_normal(
            [number(x), 1], tf.stack([1, tf.cast(WEIGHT[0, 0], tf.int32)])
        )
    ),
    the_same_classes=lambda x, y, w: tf.random.stateless_categorical(x, 1, [1, 2]),
    keras_noise_of_a_number=lambda x, y, w: (
        x + keras.random.normal(tf.shape(x), seed=1)
    ),
    first_of_each=lambda x, y, w: tf.math.segment_sum(x, tf.cast(y[:, 0], tf.int32)),
    column_of_each_by_its_number=lambda x, y, w: tf.gather_nd(
        x, tf.stack([tf.range(number(x)), tf.argmax(y, 1, tf.int32)], 1)
    ),
    halves=lambda x, y, w: (lambda both: both[: number(x)] - both[number(x) :])(
        tf.concat([x, y], 0) @ WEIGHT
    ),
    halves_by_split=lambda x, y, w: (lambda a, b: a - b + x)(
        *tf.split(tf.concat([x, y], 0), 2)
    ),
    masked=lambda x, y, w: (
        tf.boolean_mask(x, y[:, 0] > 0) * 2.0 - tf.boolean_mask(y, y[:, 0] > 0)
    ),
    ragged_of_a_size=lambda x, y, w: tf.RaggedTensor.from_tensor(
        x, tf.argmax(y, 1)
    ).to_tensor(shape=[None, 4]),
    parted=lambda x, y, w: tf.dynamic_partition(x, tf.cast(y[:, 0] > 0, tf.int32), 2)[
        1
    ],
    mapped=lambda x, y, w: tf.map_fn(
        lambda each: tf.reduce_sum(tf.sort(each[0]) - each[1]) * WEIGHT[0, 0],
        (x, y),
        fn_output_signature=tf.float32,
    ),
    looped=lambda x, y, w: tf.while_loop(
        lambda i, state: i < 4,
        lambda i, state: (i + 1, tf.tanh(state + y[:, i, None])),
        (0, x),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 4])),
    )[1],
    pairs_that_are_added_up=lambda x, y, w: tf.einsum("bi,cj->ij", x, y),
    of_another_order_added_up=lambda x, y, w: tf.matmul(
        tf.tile(x, [2, 1]), tf.repeat(y, 2, 0), transpose_a=True
    ),
    added_up_with_a_mean=lambda x, y, w: tf.einsum("bi,j->ij", x, tf.reduce_mean(y, 0)),
    mixed_before_a_layer=lambda x, y, w: RECURRENT(x[::-1, :, None]),
)


def test_a_gradient_function_of_a_number_is_refused():
    def loss(x, y, whole):
        squared = tf.custom_gradient(
            lambda mean: (mean * 1.0, lambda given: given * mean)
        )
        return squared(tf.reduce_mean(x - y))

    assert kind_of(loss) is Reduction.UNKNOWN


@pytest.mark.parametrize("name", APART)
def test_an_example_s_own_value(name):
    assert kind_of(APART[name]) is Reduction.ROWS
    mean = kind_of(
        lambda *given: tf.reduce_mean(tf.cast(APART[name](*given), tf.float32))
    )
    assert mean is Reduction.MEAN


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_be_is_refused(name):
    mean = kind_of(
        lambda *given: tf.reduce_mean(tf.cast(REFUSED[name](*given), tf.float32))
    )
    assert mean in REFUSED_KINDS
