"""Which policies go together with local steps. Pure."""

from typing import Any


def check_combination(policy: Any, exchange: Any) -> None:
    """Checks that a policy can be kept if values move as an exchange says.

    Raises:
        ValueError: If it cannot.
    """
    if not exchange.is_each_step and not is_free(policy):
        raise ValueError(
            f"consistency={policy!r} speaks of single steps, and exchange={exchange} "
            "writes those of several steps at once, from weights as old. Use Every(1), "
            "or consistency=tfdist.Asynchronous()"
        )


def is_free(policy: Any) -> bool:
    """Whether no step ever waits or is dropped, so that nothing has to be kept."""
    return bool(getattr(policy, "is_free", False))
