"""The seed generator that `keras.random` uses without a seed, on replicas.

Keras creates one per thread when it is first needed. A step needs one that was created
in the scope of its strategy, in the thread where TensorFlow runs a replica.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist import _tf

_made_in_scope: "weakref.WeakSet[Any]" = weakref.WeakSet()
_drawing: "weakref.WeakKeyDictionary[Any, tuple[Any, Any]]" = (
    weakref.WeakKeyDictionary()
)
"""The generator and the copy of each `tf.function` that a strategy runs with one."""


@contextlib.contextmanager
def generator_in_scope() -> Iterator[None]:
    """Makes Keras create its default seed generator in the current scope.

    The variable of a generator from before the scope is on the chief, out of reach of a
    worker's step.
    """
    before = _tf.global_seed_generator()
    if before is not None and before in _made_in_scope:
        yield
        return
    _tf.set_global_seed_generator(None)
    try:
        yield
    finally:
        made = _tf.global_seed_generator()
        # If nothing was drawn, restore the state from before this context.
        if made is None:
            _tf.set_global_seed_generator(before)
        else:
            _made_in_scope.add(made)


def with_this_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that uses this thread's seed generator in any thread.

    It is a `tf.function` if the given one is, with the same options: TensorFlow runs the
    replicas within a `tf.function`, and never a `tf.function` within a replica, where
    replicas could not meet. A call with another generator traces the function again.
    """
    generator = _tf.global_seed_generator()
    if generator is None:
        return function
    if not isinstance(function, tf.types.experimental.PolymorphicFunction):
        return _setting(generator, function)
    known, drawing = _drawing.get(function, (None, None))
    if known is not generator:
        own = _setting(generator, function.python_function)
        drawing = _tf.clone_of(function, own)
        _drawing[function] = generator, drawing
    return drawing


def _setting(generator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def drawing(*args: object, **kwargs: object) -> Any:
        _tf.set_global_seed_generator(generator)
        # AutoGraph converts what a decorator of TensorFlow names so.
        return drawing.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]

    return tf.__internal__.decorator.make_decorator(function, drawing)
