"""Texts as numbers of a fixed length, in which replicas can exchange them."""

import tensorflow as tf

# 0 stands for no byte, behind the end of a text; another code is a byte plus one.
_BYTES = [b"", *(bytes([byte]) for byte in range(256))]


def longest_of(texts: tf.Tensor) -> tf.Tensor:
    """Returns the length of the longest text in bytes, at least 1; an int64 scalar."""
    lengths = tf.reshape(tf.strings.length(texts), [-1])
    return tf.cast(tf.reduce_max(tf.concat([lengths, [1]], 0)), tf.int64)


def to_codes(texts: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
    """Returns texts with a last axis more, of a code per byte and `longest` codes.

    Returns:
        An int32 tensor.
    """
    longest = tf.cast(longest, tf.int32)
    codes = tf.io.decode_raw(texts, tf.uint8, fixed_length=longest)
    is_byte = tf.sequence_mask(tf.strings.length(texts), longest)
    return tf.where(is_byte, tf.cast(codes, tf.int32) + 1, 0)


def from_codes(codes: tf.Tensor) -> tf.Tensor:
    """Returns the texts of `to_codes`."""
    return tf.strings.reduce_join(tf.gather(tf.constant(_BYTES), codes), axis=-1)
