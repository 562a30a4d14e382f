"""State from `adapt`, copied from the chief where workers differ by rounding.

`adapt` adds up examples in the order in which a worker reads them. A dataset that
shuffles without a seed has another order on each worker, and the last digits differ.
The boundaries of a `Discretization` differ by more: they are accurate to its `epsilon`.
"""

import json
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.peers import checksums
from tfdist.peers.peers import Peers

_TOLERANCE = 1e-4
"""The tolerance relative to a layer's largest number: beyond it, the data differ."""

_MOST_NUMBERS = 2**16

State = dict[str, list[Any]]


def take_the_chiefs(model: keras.Model, peers: Peers) -> bool:
    """Copies the chief's state of layers if all workers' are equal but for rounding.

    All workers call it at the same time. Returns whether a layer has another state now,
    on some worker.
    """
    layers = _tf.flatten_layers(model)
    mine = [_state(layer) for layer in layers]
    texts = peers.gather_texts(json.dumps(mine))
    chiefs, *others = [json.loads(text) for text in texts.values()]
    # Another number of layers is another model, and not a matter of rounding.
    if any(len(each) != len(chiefs) for each in others):
        return False
    changed = False
    for index, layer in enumerate(layers):
        theirs = [each[index] for each in others]
        differs = any(each != chiefs[index] for each in theirs)
        if differs and all(_is_close(layer, each, chiefs[index]) for each in theirs):
            changed = True
            _set_state(layer, chiefs[index])
    return changed


def _set_state(layer: keras.Layer, state: State) -> None:
    if _has_quantiles(layer):
        layer.summary = _summary(state)
        layer.bin_boundaries = state["bin_boundaries"]
        return
    for name, values in state.items():
        old = getattr(layer, name)
        new = np.asarray(values, old.dtype.as_numpy_dtype).reshape(old.shape)
        setattr(layer, name, tf.constant(new))


def _has_quantiles(layer: keras.Layer) -> bool:
    """Returns True if a layer is a `Discretization` that has been adapted."""
    return (
        isinstance(layer, keras.layers.Discretization)
        and layer.summary is not None
        and bool(layer.summary.size and layer.bin_boundaries)
    )


def _summary(state: State) -> Any:
    return np.asarray(state["summary"], "float32").reshape(2, -1)


def _state(layer: keras.Layer) -> State:
    """Returns the tensors of a layer that are no variables, and that may be rounded."""
    if _has_quantiles(layer):
        boundaries = [float(each) for each in layer.bin_boundaries]
        summary = layer.summary.ravel().tolist()
        return {"summary": summary, "bin_boundaries": boundaries}
    found = {
        name: np.asarray(value).ravel().tolist()
        for name, value in checksums.constants(layer)
        if isinstance(kept := getattr(layer, name), tf.Tensor)
        and kept.dtype.is_floating
    }
    return found if sum(map(len, found.values())) <= _MOST_NUMBERS else {}


def _is_close(layer: keras.Layer, state: State, chiefs: State) -> bool:
    if _has_quantiles(layer):
        return state.keys() == chiefs.keys() and are_alike(
            _summary(state), _summary(chiefs), layer.epsilon
        )
    largest = max((abs(each) for value in chiefs.values() for each in value), default=0)
    return {name: len(value) for name, value in state.items()} == {
        name: len(value) for name, value in chiefs.items()
    } and all(
        np.allclose(value, chiefs[name], rtol=0, atol=_TOLERANCE * largest)
        for name, value in state.items()
    )


_RANKS = 5
"""The most epsilons by which two summaries of the same numbers may differ.

Up to 3.9 were seen: of four distributions, 300 to 30,000 numbers, and batches of 32 and 256.
"""

_WEIGHT = 1e-4
"""The relative tolerance of the sum of weights, set by the number of examples."""

_STEP = 1e-3
"""A step relative to the range of the numbers: where many are equal, a rank jumps."""


def are_alike(one: Any, other: Any, epsilon: float) -> bool:
    """Returns True if two summaries may be of the same numbers.

    A summary has two rows: ascending numbers and their weights.
    """
    totals = one[1].sum(), other[1].sum()
    if not np.isclose(*totals, rtol=_WEIGHT):
        return False
    at = np.concatenate([one[0], other[0]])
    step = _STEP * (at.max() - at.min())
    return bool(
        max(
            (_rank(one, at) - _rank(other, at + step)).max(),
            (_rank(other, at) - _rank(one, at + step)).max(),
        )
        <= _RANKS * epsilon
    )


def _rank(summary: Any, at: Any) -> Any:
    return np.interp(at, summary[0], summary[1].cumsum() / summary[1].sum())
