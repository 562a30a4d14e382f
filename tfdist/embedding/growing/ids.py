"""Which values are ids: whole numbers that fit into int64, or strings."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.embedding.growing.hashing import ids_of_strings


def ids_of(values: Any, key_dtype: str, path: str) -> tf.Tensor:
    """Returns ids as int64: numbers as they are, and strings hashed.

    Args:
        values: Dense, of any shape.
        key_dtype: `"int64"` or `"string"`.
        path: That of the layer, for errors.

    Raises:
        TypeError: If they are not of that type, or a cast could make two ids one.
    """
    if isinstance(values, tf.SparseTensor):
        raise TypeError(
            f"the ids of {path} are a SparseTensor, and it looks up dense or "
            "ragged ones: use tfdist.DynamicEmbeddingBag, or tf.sparse.to_dense"
        )
    values = tf.convert_to_tensor(values)
    if (values.dtype == tf.string) != (key_dtype == "string"):
        raise TypeError(
            f"the ids of {path} are of {values.dtype.name}, and its key_dtype is "
            f"{key_dtype!r}: choose the one that the data have"
        )
    if values.dtype == tf.string:
        return ids_of_strings(values)
    if values.dtype == tf.uint64:
        raise TypeError(
            f"the ids of {path} are uint64, of which int64 has half: cast them, "
            "for example with tf.bitcast(ids, tf.int64), which keeps them apart"
        )
    if values.dtype == tf.bool:
        raise TypeError(f"the ids of {path} are bool: cast them to int64")
    if not values.dtype.is_integer:
        # A float32 has 24 bits, with which large ids would become equal to others.
        raise TypeError(
            f"the ids of {path} are {values.dtype.name}, which rounds large ids: cast "
            "them to int64 where they are still whole, and begin the model with "
            "keras.Input(shape, dtype='int64')"
        )
    return tf.cast(values, tf.int64)


def check_once(ids: np.ndarray) -> None:
    """Checks that no id is there twice.

    Raises:
        ValueError: If one is.
    """
    unique, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"upsert takes each id once; received {unique[counts > 1][0]} "
            f"{counts.max()} times"
        )
