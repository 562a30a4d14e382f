"""What a step is told that takes the number of rows for that of the whole batch."""

import pytest
import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.synchronous.fit.fixed_rows import explained

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
    with pytest.raises((TypeError, ValueError), match=r"tf\.shape\(x\)\[0\]") as raised:
        traced(step)
    assert step.__name__ in [each.name for each in raised.traceback]


def test_what_one_process_raises_stays_as_it_is():
    with pytest.raises(ValueError, match="None") as raised:
        traced(of_a_divisor, has_fixed_rows=False)
    assert "tf.shape" not in str(raised.value)


def test_another_error_stays_as_it_is():
    def step(x):
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="^no such layer$"):
        traced(step)


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_which_batches_have_a_fixed_size(drop_remainder):
    data = tf.data.Dataset.from_tensor_slices(tf.zeros([9, 4]))
    batches = data.batch(3, drop_remainder=drop_remainder)
    assert BatchStructure(batches.element_spec).has_fixed_rows == drop_remainder
