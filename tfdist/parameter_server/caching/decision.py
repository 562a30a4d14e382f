"""Decision to move a block of variables between a worker and its ps. Pure.

Numbers may be Python's, NumPy's or tensors.
"""

from typing import Any


def bound(threshold: Any, learning_rate: Any, norm: Any) -> Any:
    """Returns how much of a change is small: it shrinks with the learning rate.

    The significance filter of Gaia (Hsieh et al., NSDI 2017) compares each element with its
    own value, and shrinks with the square root of the time. A block is compared as a whole
    here, and the learning rate says what that root stands for.

    >>> bound(2.0, 0.1, 10.0)
    2.0

    Args:
        threshold: In learning rates.
        learning_rate: The optimizer's rate now.
        norm: The Euclidean norm of the block when it last moved.
    """
    return threshold * learning_rate * norm


def is_due(own: Any, others: Any, bound: Any, age: Any, max_age: Any) -> Any:
    """Returns True if a block moves before the next step.

    >>> is_due(own=1.0, others=0.5, bound=1.5, age=3, max_age=10)
    False
    >>> is_due(own=1.0, others=0.6, bound=1.5, age=3, max_age=10)
    True
    >>> is_due(own=0.0, others=0.0, bound=1.5, age=10, max_age=10)
    True

    NaN moves at once, so that others see it, too.

    Args:
        own: The norm of the worker's change since the block last moved.
        others: The sum of the norms of what other workers have added since.
        bound: The block moves if the sum of both exceeds it.
        age: The number of steps that have used it since.
        max_age: The most steps that may use it.
    """
    is_nan = own != own  # noqa: PLR0124 - for any comparison
    return (own + others > bound) | is_nan | (age >= max_age)
