"""Conversion of values to ids: integers that fit into int64, or hashes of strings."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.embedding.growing.hashing import ids_of_strings


def ids_of(values: Any, key_dtype: str, path: str) -> tf.Tensor:
    """Returns ids as int64: numbers as they are, and strings hashed.

    Args:
        values: Dense, of any shape.
        key_dtype: `"int64"` or `"string"`.
        path: The path of the layer, for errors.

    Raises:
        TypeError: If they are not of that type, or a cast could make two ids one.
    """
    if isinstance(values, tf.SparseTensor):
        raise TypeError(
            f"the ids of {path} are a SparseTensor, and it looks up dense or "
            "ragged ones: use tfdist.embedding.DynamicEmbeddingBag, or tf.sparse.to_dense"
        )
    values = tf.convert_to_tensor(values)
    check_dtype(values.dtype, key_dtype, path)
    if values.dtype == tf.string:
        return ids_of_strings(values)
    return tf.cast(values, tf.int64)


def check_dtype(dtype: tf.DType, key_dtype: str, path: str) -> None:
    """Checks that values of a dtype are ids of a layer.

    Raises:
        TypeError: If they are not of its type, or a cast could make two ids one.
    """
    if (dtype == tf.string) != (key_dtype == "string"):
        raise TypeError(
            f"the ids of {path} are of {dtype.name}, and its key_dtype is "
            f"{key_dtype!r}: choose the one that the data have"
        )
    if dtype == tf.uint64:
        raise TypeError(
            f"the ids of {path} are uint64, of which int64 has half: cast them, "
            "for example with tf.bitcast(ids, tf.int64), which keeps them apart"
        )
    if dtype == tf.bool:
        raise TypeError(f"the ids of {path} are bool: cast them to int64")
    if dtype != tf.string and not dtype.is_integer:
        # A float32 has 24 bits, with which large ids would become equal to others.
        raise TypeError(
            f"the ids of {path} are {dtype.name}, which rounds large ids: cast "
            "them to int64 where they are still whole, and begin the model with "
            "keras.Input(shape, dtype='int64')"
        )


def vector_of(values: Any, key_dtype: str, path: str) -> np.ndarray:
    """Returns ids that a program names one by one, as a vector of int64.

    Raises:
        TypeError: If they are no ids.
    """
    try:
        array = np.asarray(values).reshape(-1)
        if not array.size:  # Of nothing, NumPy makes floats.
            return np.zeros(0, np.int64)
        tensor = tf.constant(array)
    except (TypeError, ValueError, OverflowError) as error:
        allowed = "strings" if key_dtype == "string" else "whole numbers of int64"
        raise TypeError(
            f"the ids of {path} are {allowed}, as a list or an array; received "
            f"{values!r:.100}"
        ) from error
    found: np.ndarray = ids_of(tensor, key_dtype, path).numpy()
    return found


def check_once(ids: np.ndarray, given: np.ndarray) -> None:
    """Checks that no id is there twice.

    Args:
        ids: As numbers.
        given: The program's names for them, which may be strings.

    Raises:
        ValueError: If one is.
    """
    order = np.argsort(ids, kind="stable")
    is_next_same = ids[order][1:] == ids[order][:-1]
    if is_next_same.any():
        at = int(np.argmax(is_next_same))
        first, second = order[at], order[at + 1]
        raise ValueError(
            f"upsert takes each id once; received {given[first]} at {first} and "
            f"{given[second]} at {second}"
        )
