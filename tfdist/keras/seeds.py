"""The seed generator that `keras.random` uses without a seed, on replicas.

Keras creates one per thread when it is first needed. A step needs one that was created
in the scope of its strategy, in the thread where TensorFlow runs a replica.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tfdist import _tf

_made_in_scope: "weakref.WeakSet[Any]" = weakref.WeakSet()


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
    """Returns a function that uses this thread's seed generator in any thread."""
    generator = _tf.global_seed_generator()

    @functools.wraps(function)
    def drawing(*args: Any, **kwargs: Any) -> Any:
        if generator is not None:
            _tf.set_global_seed_generator(generator)
        return function(*args, **kwargs)

    return drawing
