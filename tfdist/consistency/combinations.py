"""Which policies go together with local steps, and with fewer bits. Pure."""

from typing import Any

from tfdist.consistency.synchronous import Synchronous


def check_combination(policy: Any, exchange: Any, wire_dtype: str | None) -> None:
    """Checks that a policy can be kept if values move as an exchange says.

    Args:
        policy: When a step may start.
        exchange: How often values move.
        wire_dtype: In which dtype they do, or None for their own.

    Raises:
        ValueError: If it cannot.
    """
    if not exchange.is_each_step and not is_free(policy):
        raise ValueError(
            f"consistency={policy!r} speaks of single steps, and exchange={exchange} "
            "writes those of several steps at once, from weights as old. Use Every(1), "
            "or consistency=tfdist.Asynchronous()"
        )
    if wire_dtype is None:
        return
    if not exchange.is_each_step:
        raise ValueError(
            f"wire_dtype={wire_dtype!r} keeps what the gradient of a step has lost for the "
            f"next one, and exchange={exchange} sends no gradients but changes of several "
            "steps. Use Every(1), or wire_dtype=None"
        )
    if isinstance(policy, Synchronous):
        raise ValueError(
            f"wire_dtype={wire_dtype!r} keeps what the gradient of a step has lost on its "
            f"worker, and consistency={policy!r} may drop a gradient or have another "
            "worker compute the next one. Use Asynchronous() or BoundedStaleness(s), or "
            "wire_dtype=None"
        )


def go_together(policy: Any, exchange: Any, wire_dtype: str | None) -> bool:
    """Whether `check_combination` allows these."""
    try:
        check_combination(policy, exchange, wire_dtype)
    except ValueError:
        return False
    return True


def is_free(policy: Any) -> bool:
    """Whether no step ever waits or is dropped, so that nothing has to be kept."""
    return bool(getattr(policy, "is_free", False))
