"""Walks of graphs."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reached(start: Iterable[T], next_to: Callable[[T], Iterable[T]]) -> set[T]:
    """Returns nodes of a graph and all that `next_to` leads to from them."""
    found: set[T] = set()
    pending = list(start)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += next_to(node)
    return found
