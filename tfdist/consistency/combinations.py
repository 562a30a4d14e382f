"""Combinations of a policy with other arguments, and policies that never wait. Pure."""

from typing import Any

from tfdist.consistency.asynchronous import Asynchronous
from tfdist.consistency.bounded_staleness import BoundedStaleness
from tfdist.consistency.policy import Consistency
from tfdist.consistency.synchronous import Synchronous

_DECISIONS = ("may_start", "may_write", "counts", "is_free", "_rooms")


def decides_as(policy: Consistency, kind: type) -> bool:
    """Returns True if a policy is of a kind, and overrides none of its decisions."""
    own = type(policy)
    return (
        isinstance(policy, kind)
        and not any(name in vars(policy) for name in _DECISIONS)
        and all(
            getattr(own, name, None) is getattr(kind, name, None) for name in _DECISIONS
        )
    )


def check_combination(
    policy: Consistency, exchange: Any, wire_dtype: str | None
) -> None:
    """Checks that a policy can be kept if values move as an exchange says.

    Args:
        policy: The policy of consistency.
        exchange: How often values move.
        wire_dtype: The dtype in which they do, or None for their own.

    Raises:
        ValueError: If it cannot.
    """
    if isinstance(policy, Synchronous) and not decides_as(policy, Synchronous):
        raise ValueError(
            f"{type(policy).__name__} overrides decisions of tfdist.Synchronous, whose "
            "rounds ask nobody: the ps count gradients. Use tfdist.Synchronous itself, or "
            "a policy that is derived from tfdist.Asynchronous or has the methods "
            "may_start(step, state) and counts(gradient, state)"
        )
    if not exchange.is_each_step and not is_free(policy):
        raise ValueError(
            f"consistency={policy!r} speaks of single steps, and exchange={exchange} "
            "writes those of several steps at once, from weights as old. Use ExchangeEvery(1), "
            "or consistency=tfdist.Asynchronous()"
        )
    if wire_dtype is None:
        return
    if not exchange.is_each_step:
        raise ValueError(
            f"wire_dtype={wire_dtype!r} keeps what the gradient of a step has lost for the "
            f"next one, and exchange={exchange} sends no gradients but changes of several "
            "steps. Use ExchangeEvery(1), or wire_dtype=None"
        )
    if isinstance(policy, Synchronous):
        raise ValueError(
            f"wire_dtype={wire_dtype!r} keeps what the gradient of a step has lost on its "
            f"worker, and consistency={policy!r} may drop a gradient or have another "
            "worker compute the next one. Use Asynchronous() or BoundedStaleness(s), or "
            "wire_dtype=None"
        )


def go_together(policy: Consistency, exchange: Any, wire_dtype: str | None) -> bool:
    """Returns True if `check_combination` allows these."""
    try:
        check_combination(policy, exchange, wire_dtype)
    except ValueError:
        return False
    return True


def is_free(policy: Consistency) -> bool:
    """Returns True if no step ever waits or is dropped, so that nothing has to be kept."""
    if not getattr(policy, "is_free", False):
        return False
    for kind in (Asynchronous, BoundedStaleness):
        # Decisions of a subclass count, unless it says itself that it is free.
        if isinstance(policy, kind) and type(policy).is_free is kind.is_free:
            return decides_as(policy, kind)
    return True
