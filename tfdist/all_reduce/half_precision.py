"""Half precision on the wire: the dtype of a message, and whether it fits."""

import tensorflow as tf

WIRE_DTYPES = ("bfloat16", "float16")
"""The values of `wire_dtype` besides None."""

NARROWED = (tf.float32, tf.float64)


def travels_as(dtype: tf.DType, wire_dtype: tf.DType | None) -> tf.DType:
    """Returns the wire dtype of values of a dtype."""
    return dtype if wire_dtype is None or dtype not in NARROWED else wire_dtype


def to_wire(value: tf.Tensor, wire_dtype: tf.DType | None) -> tf.Tensor:
    """Returns the message to send: the value itself, or the value in half precision.

    A number that is too large for half precision would arrive as infinity, so it raises
    InvalidArgumentError when it runs. Infinities and NaN are sent unchanged. A float32
    above bfloat16's maximum (3.39e38 of 3.40e38) is not detected, and becomes infinity.
    Only float32 and float64 are narrowed.
    """
    # Without the identity, a cast to the same dtype would return `value` itself, which
    # cannot wait for the control inputs that `Turns` adds.
    message = tf.cast(tf.identity(value), travels_as(value.dtype, wire_dtype))
    if wire_dtype is None or message.dtype == value.dtype:
        return message
    if (wire_dtype, value.dtype) == (tf.bfloat16, tf.float32):
        # All but the last 0.4% of float32's range fits. A check would read every value
        # a second time.
        return message
    wider = "wire_dtype='bfloat16'" if value.dtype == tf.float32 else "wire_dtype=None"
    complaint = (
        f"a value or a partial sum is too large for wire_dtype={wire_dtype.name!r}"
        f" (at most {float(wire_dtype.max):g}): use {wider}, or clip or scale the "
        "values. The largest is"
    )
    magnitudes = tf.abs(tf.where(tf.math.is_finite(value), value, 0))
    largest = tf.reduce_max(magnitudes)
    fits = largest <= tf.cast(wire_dtype.max, value.dtype)
    check = tf.raw_ops.Assert(condition=fits, data=[complaint, largest])
    # In eager mode the assertion has already run, and there is no operation.
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(message)
