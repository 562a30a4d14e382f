"""Leaves the scope of a strategy temporarily."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def outside_of_scope() -> Iterator[None]:
    """Leaves all strategy scopes within this context.

    TensorFlow keeps the stack of scopes in the default graph, even in eager mode. So a
    new default graph has none, and eager mode must be entered again inside it.
    """
    with tf.Graph().as_default(), tf.__internal__.eager_context.eager_mode():
        yield
