"""The optimizers that a model may use, and which of them update each element by itself."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from tfdist import _tf
from tfdist.variables.fused_kernels import RULES

_BY_ELEMENT = frozenset({*RULES, "Lion", "Nadam", "ScheduleFreeAdamW"})
"""Optimizers of Keras that update each element by its own gradient and slots alone.

Others, such as `Lamb`, `Muon` and a user's own, may look at a norm, a mean or a root of
the whole weight, which differs from that of a shard.
"""


def is_by_element(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns True if an optimizer updates each element of a weight by itself."""
    if "update_step" in vars(optimizer):
        return False
    owner = next(c for c in type(optimizer).__mro__ if "update_step" in vars(c))
    # A wrapper has no step of its own.
    is_wrapper = owner in keras.optimizers.Optimizer.__mro__
    is_keras_own = getattr(keras.optimizers, owner.__name__, None) is owner
    return is_wrapper or (is_keras_own and owner.__name__ in _BY_ELEMENT)


def is_overridden(model: Any, name: str) -> bool:
    """Returns True if a model has a method of its own in the place of Keras's."""
    is_inherited = getattr(type(model), name) is getattr(keras.Model, name)
    return name in vars(model) or not is_inherited


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns the compiled optimizer, and those that a custom `train_step` may use.

    They are attributes of the model, or in lists and dicts that are. Only the user's
    own `train_step` can reach optimizers of a layer, such as a compiled model.
    """
    owners = [model]
    if is_overridden(model, "train_step"):
        owners += _tf.flatten_layers(model)
    found: dict[int, keras.optimizers.Optimizer] = {}
    for each in [model.optimizer, *map(vars, owners)]:
        found |= {id(optimizer): optimizer for optimizer in with_wrapped(each)}
    return list(found.values())


def with_wrapped(
    value: Any, seen: set[int] | None = None
) -> Iterator[keras.optimizers.Optimizer]:
    """Yields the optimizers in a value, and those that they wrap."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    inner: Any = ()
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
        inner = vars(value).values()
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple | set):
        inner = value
    seen.add(id(value))
    for each in list(inner):
        yield from with_wrapped(each, seen)
