"""Which runs to make, and in which order: pure decisions."""

from collections.abc import Sequence
from dataclasses import dataclass

from tf_config import contract


class SizeError(ValueError):
    """Numbers of workers or policies that cannot be measured."""


@dataclass(frozen=True)
class Size:
    """One run to make.

    Attributes:
        workers: The number of workers.
        consistency: The policy.
        repeat: Its number among the runs with these two, from 0.
    """

    workers: int
    consistency: str
    repeat: int


def schedule(
    workers: Sequence[str], policies: Sequence[str], repeats: int
) -> list[Size]:
    """Returns the runs: every size once, then again in reverse, and so on.

    A machine that gets slower meanwhile is so for all sizes.

    >>> [size.workers for size in schedule(["2", "1"], ["asynchronous"], 2)]
    [1, 2, 2, 1]

    Args:
        workers: The numbers of workers, as text.
        policies: The policies, as text.
        repeats: How often to measure each size.

    Raises:
        SizeError: If the numbers or the policies are malformed.
    """
    for text in workers:
        if not (text.isdecimal() and int(text)):
            raise SizeError(
                f"--workers is a list of numbers from 1, as in 1,2,4; received {text!r}"
            )
    for text in policies:
        if not contract.is_policy(text):
            raise SizeError(f"--consistency: {contract.unknown_policy(text)}")
    sizes = sorted(map(int, workers))
    for name, given in (("workers", sizes), ("consistency", [*policies])):
        if not given or len(set(given)) < len(given):
            raise SizeError(
                f"--{name} names each value once, and one at least; received {given}"
            )
    once = [(size, policy) for size in sizes for policy in policies]
    return [
        Size(size, policy, repeat)
        for repeat in range(repeats)
        for size, policy in (once[::-1] if repeat % 2 else once)
    ]
