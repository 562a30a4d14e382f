"""What layers have learned by `adapt`: the chief's, where workers differ by rounding.

`adapt` adds up examples in the order in which a worker reads them. Those of a dataset that
shuffles without a seed have another order on each worker, and the last digits differ.
"""

import json
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.synchronous.fit import checksums

_TOLERANCE = 1e-4
"""Of the largest number that a layer keeps: more is a difference of the data."""

_MOST_NUMBERS = 2**16

State = dict[str, list[Any]]


def take_the_chiefs(model: Any, strategy: Any) -> bool:
    """Gives each layer the chief's state if all workers' are equal but for rounding.

    All workers call it at the same time.

    Returns:
        Whether a layer has another state now, on some worker.
    """
    layers = _tf.flatten_layers(model)
    mine = [_state(layer) for layer in layers]
    texts = strategy.extended.gather_texts(json.dumps(mine))
    chiefs, *others = [json.loads(text) for text in texts.values()]
    if any(len(each) != len(chiefs) for each in others):
        return False
    changed = False
    for index, layer in enumerate(layers):
        theirs = [each[index] for each in others]
        differs = any(each != chiefs[index] for each in theirs)
        if differs and all(_is_close(each, chiefs[index]) for each in theirs):
            changed = True
            for name, values in chiefs[index].items():
                old = getattr(layer, name)
                new = np.asarray(values, old.dtype.as_numpy_dtype).reshape(old.shape)
                setattr(layer, name, tf.constant(new))
    return changed


def _state(layer: Any) -> State:
    """Returns the tensors of a layer that are no variables, and that may be rounded."""
    found = {
        name: np.asarray(value).ravel().tolist()
        for name, value in checksums.constants(layer)
        if isinstance(kept := getattr(layer, name), tf.Tensor)
        and kept.dtype.is_floating
    }
    return found if sum(map(len, found.values())) <= _MOST_NUMBERS else {}


def _is_close(state: State, chiefs: State) -> bool:
    largest = max((abs(each) for value in chiefs.values() for each in value), default=0)
    return {name: len(value) for name, value in state.items()} == {
        name: len(value) for name, value in chiefs.items()
    } and all(
        np.allclose(value, chiefs[name], rtol=0, atol=_TOLERANCE * largest)
        for name, value in state.items()
    )
