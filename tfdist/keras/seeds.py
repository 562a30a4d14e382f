"""The generator that `keras.random` draws from without a seed, on replicas.

Keras makes one when it is first needed, and keeps it for the thread. A step needs it in
the scope of its strategy, and in the thread that TensorFlow runs a replica in.
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
    """Has what draws without a seed meanwhile make a generator in the current scope.

    One that was made before the scope was entered is of no use on a worker.
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
        if made is None:
            _tf.set_global_seed_generator(before)
        else:
            _made_in_scope.add(made)


def with_this_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that draws, in any thread, from this thread's generator."""
    generator = _tf.global_seed_generator()

    @functools.wraps(function)
    def drawing(*args: Any, **kwargs: Any) -> Any:
        if generator is not None:
            _tf.set_global_seed_generator(generator)
        return function(*args, **kwargs)

    return drawing
