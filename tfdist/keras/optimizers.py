"""The optimizers that a model may use, and which of them update each element by itself."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
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


def is_overridden(model: keras.Model, name: str) -> bool:
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


_APPLIES = ("apply", "apply_gradients")


@contextlib.contextmanager
def replaced_applies(
    optimizers: Iterable[keras.Optimizer],
    apply: Callable[[Any, str, list[Any], Any], None],
) -> Iterator[None]:
    """Replaces what the classes of some optimizers have in the place of Keras's `apply`.

    `apply` is called with the optimizer, the name of the method that was called, gradients,
    and variables or None.
    """

    def of_pairs(optimizer: keras.Optimizer, grads_and_vars: Any) -> None:
        grads, variables = zip(*grads_and_vars, strict=True)
        apply(optimizer, "apply_gradients", list(grads), list(variables))

    def of_lists(
        optimizer: keras.Optimizer, grads: Any, trainable_variables: Any = None
    ) -> None:
        apply(optimizer, "apply", list(grads), trainable_variables)

    own = [
        each
        for each in optimizers
        if any(getattr(type(each), n) is not getattr(_kind(each), n) for n in _APPLIES)
    ]
    # Past `__setattr__`, which would track them.
    for each in own:
        vars(each)["apply"] = functools.partial(of_lists, each)
        vars(each)["apply_gradients"] = functools.partial(of_pairs, each)
    try:
        yield
    finally:
        for each in own:
            for name in _APPLIES:
                del vars(each)[name]


def _kind(optimizer: keras.Optimizer) -> Any:
    """Returns the first class of Keras among those that an optimizer is of."""
    kinds = type(optimizer).__mro__
    return next(c for c in kinds if getattr(keras.optimizers, c.__name__, None) is c)
