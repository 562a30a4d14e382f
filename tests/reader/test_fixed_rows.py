"""What a step is told that takes the number of rows for that of the whole batch."""

import keras
import pytest
import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.synchronous.fit.fixed_rows import explained
from tfdist.synchronous.reader.indivisible import IndivisibleLossError
from tfdist.synchronous.reader.reduction import REFUSED
from tfdist.synchronous.reader.reduction_reader import ReductionReader

from ..support.raising import raises

ROWS = tf.TensorSpec([None, 4])


def of_a_list(x):
    return tf.ones(x.shape[:1] + [1])


def of_a_tuple(x):
    return tf.reshape(x, (x.shape[0], 2, 2))


def of_a_loop(x):
    return [x[i] for i in range(x.shape[0])]


def of_a_half(x):
    return x[: x.shape[0] // 2]


def of_a_divisor(x):
    return tf.reduce_sum(x) / x.shape[0]


def traced(step, has_fixed_rows=True):
    with explained(has_fixed_rows):
        tf.function(step, autograph=False).get_concrete_function(ROWS)


@pytest.mark.parametrize(
    "step", [of_a_list, of_a_tuple, of_a_loop, of_a_half, of_a_divisor]
)
def test_a_size_read_from_a_shape(step):
    with raises((TypeError, ValueError), "tf.shape(x)[0]") as raised:
        traced(step)
    assert step.__name__ in [each.name for each in raised.traceback]


def test_what_one_process_raises_stays_as_it_is():
    with raises(ValueError, "None") as raised:
        traced(of_a_divisor, has_fixed_rows=False)
    assert "tf.shape" not in str(raised.value)


def test_another_error_stays_as_it_is():
    def step(x):
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="^no such layer$"):
        traced(step)


def test_an_error_of_another_axis_stays_as_it_is():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    with raises(ValueError, "value 8") as raised:
        traced(model)
    assert "tf.shape" not in str(raised.value)


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_which_batches_have_a_fixed_size(drop_remainder):
    data = tf.data.Dataset.from_tensor_slices(tf.zeros([9, 4]))
    batches = data.batch(3, drop_remainder=drop_remainder)
    assert BatchStructure(batches.element_spec).has_fixed_rows == drop_remainder


def noise_added(x):
    return x + tf.random.normal((8, 4))


def noise_appended(x):
    return tf.concat([x, tf.random.normal((8, 2))], 1)


def chosen(x):
    return tf.where(tf.random.uniform((8, 1)) > 0.5, x, 0.0)


def labelled(x):
    return keras.losses.binary_crossentropy(tf.ones((8, 4)), tf.sigmoid(x))


def reshaped(x):
    return tf.reshape(x, (8, 2, 2))


in_a_function = tf.function(noise_added)


def refusal_of(loss):
    reader = ReductionReader()
    assert reader.kind_of(loss) in REFUSED
    return reader.error_of(loss)


@pytest.mark.parametrize(
    "step", [noise_added, noise_appended, chosen, labelled, reshaped, in_a_function]
)
def test_a_fixed_number_of_rows(step):
    def trace(x):
        loss = tf.reduce_mean(step(x))
        words = r"test_fixed_rows\.py, line.*makes 8 rows.*a part.*tf\.shape\(x\)\[0\]"
        with pytest.raises(IndivisibleLossError, match=words):
            raise refusal_of(loss)

    tf.function(trace, autograph=False).get_concrete_function(ROWS)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: tf.reduce_max(x, axis=0),
        lambda x: tf.math.top_k(x[:, 0], 5)[0],
        lambda x: tf.reduce_max(x, axis=0, keepdims=True),
    ],
)
def test_rows_that_are_selected_are_not_said_to_be_fixed(step):
    def trace(x):
        with raises(IndivisibleLossError, "sums and means"):
            raise refusal_of(tf.reduce_mean(step(x)))

    tf.function(trace, autograph=False).get_concrete_function(ROWS)


@pytest.mark.parametrize(
    "step",
    [
        noise_added,
        noise_appended,
        chosen,
        reshaped,
        lambda x: tf.matmul(tf.ones((4, 8)), x),
        lambda x: tf.nn.softmax_cross_entropy_with_logits(tf.ones((8, 4)), x),
        lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(8) // 2, x),
        lambda x: tf.ensure_shape(x, (8, 4)),
        lambda x: tf.add_n([x, tf.ones((8, 4))]),
        lambda x: tf.einsum("ij,ij->j", x, tf.ones((8, 4))),
    ],
)
def test_shapes_that_do_not_match_when_the_step_runs(step):
    run = tf.function(step, autograph=False, input_signature=[ROWS])
    words = r"(?s)If one of these sizes .*a part of its rows.*tf\.shape\(x\)\[0\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=words), explained(True):
        run(tf.ones((4, 4)))


def test_another_error_of_a_running_step_stays_as_it_is():
    run = tf.function(lambda x: tf.debugging.check_numerics(x, "mine"))
    with pytest.raises(tf.errors.InvalidArgumentError) as raised, explained(True):
        run(tf.constant([float("nan")]))
    assert "tf.shape" not in str(raised.value)
