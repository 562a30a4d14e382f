"""Adds a graph several times to the function being traced, in a loop if it is large."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._support.types import Nest

State = Sequence[tf.Tensor]


def repeated(
    add: Callable[[int | tf.Tensor, State], tuple[Nest, State]],
    times: int,
    copies: int,
    state: State = (),
) -> tuple[Nest, State]:
    """Runs something again and again, each time on the state that it has left.

    Without a loop where possible: TensorFlow sends six messages per iteration of a loop
    that spans tasks.

    Args:
        add: Takes how often it has run before and the state; adds it once more. Returns
            its result, a vector of float64 in a loop, and the new state.
        times: How often it is to run.
        copies: How often to add it without a loop. It is added fewer than twice as often.
        state: The initial state.
    """
    done, result = 0, None
    if times // copies > 1:
        done = times - times % copies
        result, state = _looped(add, done, copies, state)
    for i in range(done, times):
        result, state = add(i, state)
    return result, state


def _looped(
    add: Callable[[int | tf.Tensor, State], tuple[Nest, State]],
    times: int,
    copies: int,
    state: State,
) -> tuple[tf.Tensor, State]:
    # The result's length is known only once `body` has been traced, after the loop
    # needs an initial value. So the loop starts from an empty vector.
    shape = None
    # TensorFlow keeps the state of a loop where its first value is: a value that is pulled
    # from a ps would go there and back in each iteration.
    state = [tf.identity(each) for each in state]

    def body(i: tf.Tensor, result: Nest, *state: tf.Tensor) -> tuple[Any, ...]:
        nonlocal shape
        after: State = state
        for copy in range(copies):
            result, after = add(i + copy, after)
        shape = result.shape
        return i + copies, result, *after

    _, result, *after = tf.while_loop(
        lambda i, *_: i < times,
        body,
        (tf.constant(0), tf.zeros([0], tf.float64), *state),
        shape_invariants=(
            tf.TensorShape([]),
            tf.TensorShape([None]),
            *(each.shape for each in state),
        ),
        parallel_iterations=1,
    )
    result.set_shape(shape)
    return result, after
