"""Eviction rules, which choose rows between steps by age, count or norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

HOUR = 3600.0  # seconds


@dataclass(frozen=True)
class Known:
    """The statistics of some rows.

    Attributes:
        age: Seconds since a training step last looked each row up.
        count: In how many training steps that was, decayed.
        norm: The L2 norm of each row.
    """

    age: np.ndarray
    count: np.ndarray
    norm: np.ndarray


@dataclass(frozen=True)
class EvictUnseen:
    """Gives up rows that no training step has looked up for this number of hours.

    Raises:
        ValueError: If `hours` is not positive.
    """

    hours: float

    def __post_init__(self) -> None:
        hours = _number(self.hours)
        _check(hours > 0, "EvictUnseen", "a positive number of hours", self.hours)

    def evicts(self, known: Known) -> np.ndarray:
        """Returns which rows go."""
        return known.age > self.hours * HOUR


@dataclass(frozen=True)
class EvictRare:
    """Gives up rows that too few training steps have looked up.

    Args:
        count: The least number of steps with which a row stays: at least 1.
        decay: The factor of all counts at each eviction, in (0, 1], so that an id that
            was once frequent goes, too; 1 keeps them.

    Raises:
        ValueError: If one of them is not.
    """

    count: float
    decay: float = 1.0

    def __post_init__(self) -> None:
        count, decay = _number(self.count), _number(self.decay)
        _check(count >= 1, "EvictRare", "a count of at least 1", self.count)
        _check(0 < decay <= 1, "EvictRare", "a decay in (0, 1]", self.decay)

    def evicts(self, known: Known) -> np.ndarray:
        """Returns which rows go."""
        return known.count < self.count


@dataclass(frozen=True)
class EvictSmall:
    """Gives up rows whose L2 norm is less than `l2`: they add little to any result.

    Raises:
        ValueError: If `l2` is not positive.
    """

    l2: float

    def __post_init__(self) -> None:
        _check(_number(self.l2) > 0, "EvictSmall", "a positive norm", self.l2)

    def evicts(self, known: Known) -> np.ndarray:
        """Returns which rows go."""
        return known.norm < self.l2


Eviction = EvictUnseen | EvictRare | EvictSmall


def evictions_of(value: Any) -> tuple[Eviction, ...]:
    """Checks the argument `eviction`: one rule, several, or None.

    Raises:
        TypeError: If it has anything else.
    """
    rules = () if value is None else value
    rules = tuple(rules) if isinstance(rules, Sequence) else (rules,)
    wrong = [each for each in rules if not isinstance(each, Eviction)]
    if wrong:
        raise TypeError(
            "eviction must be a list of tfdist.embedding.EvictUnseen(hours=72), "
            "tfdist.embedding.EvictRare(count=2, decay=0.98) and "
            "tfdist.embedding.EvictSmall(l2=1e-3), or None; "
            f"received {wrong[0]!r}"
        )
    return rules


def decay_of(rules: Sequence[Eviction]) -> float:
    """Returns the factor of the counts at an eviction."""
    return math.prod(each.decay for each in rules if isinstance(each, EvictRare))


def _number(value: Any) -> float:
    """Returns a number, and for anything else one that no rule allows."""
    return float(value) if isinstance(value, Real) else math.nan


def _check(is_right: bool, name: str, allowed: str, received: Any) -> None:
    if not is_right:
        raise ValueError(f"{name} takes {allowed}; received {received!r}")
