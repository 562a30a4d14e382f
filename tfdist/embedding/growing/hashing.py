"""Ids as well-mixed numbers: which ps has an id, and what its row begins with.

The mixing function is the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast
Splittable Pseudorandom Number Generators", figure 14): a bijection of 64 bits.
"""

import numpy as np
import tensorflow as tf

from tfdist.embedding.growing.pieces import BUCKETS

_BUCKET_BITS = BUCKETS.bit_length() - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mixed(numbers: tf.Tensor) -> tf.Tensor:
    """Mixes the bits of int64 or uint64 numbers of any shape; returns uint64."""
    x = tf.bitcast(numbers, tf.uint64)
    x = (x ^ _shifted(x, 30)) * _number(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _number(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def buckets_of(ids: tf.Tensor) -> tf.Tensor:
    """Returns the bucket of each id, int32, from 0 to `BUCKETS` - 1."""
    return tf.cast(_shifted(mixed(ids), 64 - _BUCKET_BITS), tf.int32)


def owners_of(ids: tf.Tensor, num_shards: int) -> tf.Tensor:
    """Returns the shard that has each id, int32: each has neighbouring buckets."""
    # The inverse of `bounds_of`, which rounds up.
    return buckets_of(ids) * num_shards // BUCKETS


def numbers_of(ids: tf.Tensor, width: int, seed: int | tf.Tensor) -> tf.Tensor:
    """Returns uint64 numbers `[n, width]` that depend on seed, id and column alone."""
    seed = _number(seed) if isinstance(seed, int) else tf.bitcast(seed, tf.uint64)
    # With `ids ^ seed` alone, two near seeds would give near ids the same numbers.
    of_ids = mixed(mixed(ids) ^ seed)
    columns = np.arange(1, width + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return mixed(of_ids[:, tf.newaxis] + tf.constant(columns))


def ids_of_strings(strings: tf.Tensor) -> tf.Tensor:
    """Hashes strings to 63 bits, by FarmHash, which gives the same on every machine.

    Of n different strings, some two have one id with a probability of about
    n^2 / 2^64: 5e-8 for a million, 5e-4 for a hundred millions.
    """
    return tf.strings.to_hash_bucket_fast(strings, 2**63 - 1)


def _shifted(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, _number(bits))


def _number(value: int) -> tf.Tensor:
    return tf.constant(value & (2**64 - 1), tf.uint64)
