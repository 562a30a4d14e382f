"""Checksums of everything that must be equal on all workers: data, models, arguments.

Two workers with the same script differ where the script draws random numbers without a
seed, or reads files that are not the same on both.
"""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest

Checksums = dict[str, int]

# A larger array is sampled, at evenly spaced rows.
_LARGEST_BYTES = 1 << 26
# Keras numbers names by what a worker has created before, and draws a seed where none is
# given. Vocabularies are compared by their words: see `of_model`.
_OF_ONE_WORKER = frozenset({"name", "seed", "vocabulary"})
_PRIMITIVES = (bool, int, float, str, type(None))


def of_array(value: Any) -> int:
    """Returns a checksum of an array's shape, dtype and content.

    Cost: reads at most 64 MiB of it.
    """
    array = np.asarray(value)
    every = max(1, -(-array.nbytes // _LARGEST_BYTES))
    sample = array[::every] if array.ndim else array
    if sample.dtype.hasobject:
        content = "\0".join(map(str, sample.ravel().tolist())).encode()
    else:
        content = np.ascontiguousarray(sample).tobytes()
    return zlib.crc32(content, zlib.crc32(f"{array.shape} {array.dtype}".encode()))


def of_tensors(name: str, structure: Nest) -> Checksums:
    """Returns a checksum per tensor or array of a nested structure, by path."""
    pairs = keras.tree.flatten_with_path(structure)
    return {
        "".join([name, *(f"[{key!r}]" for key in path)]): of_array(_as_array(leaf))
        for path, leaf in pairs
        if leaf is not None
    }


def of_values(name: str, value: Any) -> int:
    """Returns a checksum of numbers, strings, and lists and dicts of both."""
    return zlib.crc32(repr((name, _plain(value))).encode())


def of_model(model: keras.Model) -> Checksums:
    """Returns checksums of a model's layers, their tables and its optimizer.

    Weights are left out: all workers start from the chief's.
    """
    found: Checksums = {}
    for index, layer in enumerate([model, *_tf.flatten_layers(model)]):
        name = f"layer {index} ({type(layer).__name__})"
        shapes = [(tuple(v.shape), str(v.dtype)) for v in layer.variables]
        found[f"{name}: its variables"] = of_values(name, shapes)
        if layer is not model:
            found[f"{name}: its options"] = of_values(name, _config(layer))
        if callable(getattr(layer, "get_vocabulary", None)):
            vocabulary = [str(word) for word in layer.get_vocabulary()]
            found[f"{name}: its vocabulary"] = of_values(name, vocabulary)
        for attribute, value in constants(layer):
            found[f"{name}: {attribute}"] = of_array(value)
    if model.optimizer is not None:
        name = type(model.optimizer).__name__
        config = _config(model.optimizer)
        # All workers take the chief's learning rate, which is a variable. A schedule is
        # not.
        if not isinstance(config.get("learning_rate"), Mapping):
            config.pop("learning_rate", None)
        found["the optimizer"] = of_values(name, config)
    return found


def of_updates(model: keras.Model) -> dict[str, str]:
    """Returns the numbers that decide an update, and that no step exchanges, as text.

    They are those of the model's optimizer without slots, and which layers train.
    """
    layers = _tf.flatten_layers(model)
    found = {
        f"layer {index} ({type(layer).__name__}).trainable": str(layer.trainable)
        for index, layer in enumerate(layers, start=1)
    }
    if (optimizer := model.optimizer) is None:
        return found
    for name, value in _config(optimizer).items():
        if isinstance(value, _PRIMITIVES) and name not in ("name", "learning_rate"):
            found[name] = str(value)
    # A slot has its weight's name, in which Keras counts what a worker has created.
    weights = tuple(each.path.replace("/", "_") for each in model.trainable_variables)
    for index, each in enumerate(optimizer.variables):
        if not len(each.shape) and not each.name.startswith(weights):
            key = f"{each.name} (optimizer.variables[{index}])"
            found[key] = str(each.numpy())
    return found


def _config(owner: Any) -> dict[str, Any]:
    try:
        return dict(owner.get_config())
    except Exception:  # The user's code: a layer need not have a config.
        return {}


def constants(layer: keras.Layer) -> Iterator[tuple[str, Any]]:
    """Yields the tensors and arrays of a layer that are not variables."""
    for name, value in vars(layer).items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            yield name, value.numpy()
        elif isinstance(value, tf.lookup.StaticHashTable):
            keys, values = (each.numpy() for each in value.export())
            yield (
                name,
                # Sorted: a hash table exports its entries in no fixed order.
                np.stack([_as_text(keys), _as_text(values)])[:, keys.argsort()],
            )


def _plain(value: Any) -> Any:
    """Returns a form of a value that processes can compare.

    An object's `repr` contains its address, so only its type is kept.
    """
    if isinstance(value, Mapping):
        return sorted(
            (str(key), _plain(each))
            for key, each in value.items()
            if key not in _OF_ONE_WORKER
        )
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return repr(value) if isinstance(value, _PRIMITIVES) else type(value).__name__


def _as_array(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        parts = tf.nest.flatten(value, expand_composites=True)
        return np.concatenate([np.asarray(part).astype(str).ravel() for part in parts])
    return value.numpy() if hasattr(value, "numpy") else value


def _as_text(entries: np.ndarray) -> np.ndarray:
    # Bytes need not be ASCII, as which NumPy would decode them.
    return np.array([str(each) for each in entries])
