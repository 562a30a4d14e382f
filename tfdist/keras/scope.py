"""Leaving the scope of a strategy for a while."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def outside_of_scope() -> Iterator[None]:
    """Runs what is in this context as if no scope of a strategy had been entered.

    TensorFlow keeps scopes with the graph that is the default, in eager mode too.
    """
    with tf.Graph().as_default(), tf.__internal__.eager_context.eager_mode():
        yield
