"""Which policies go together with local steps. Pure."""

from typing import Any


def check_combination(policy: Any, steps_per_exchange: int) -> None:
    """Checks that a policy can be kept if values move once in so many steps.

    Raises:
        ValueError: If it cannot.
    """
    if steps_per_exchange > 1 and not is_free(policy):
        raise ValueError(
            f"consistency={policy!r} speaks of single steps, and "
            f"exchange=Every({steps_per_exchange}) writes those of "
            f"{steps_per_exchange} steps at once, from weights as old. Use Every(1), or "
            "consistency=tfdist.Asynchronous()"
        )


def is_free(policy: Any) -> bool:
    """Whether no step ever waits or is dropped, so that nothing has to be kept."""
    return bool(getattr(policy, "is_free", False))
