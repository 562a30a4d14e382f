"""The arguments of a plan, and the errors for models that cannot be planned."""

import math

from tfdist._support.errors import Error

BALANCES = ("memory", "traffic", "both")

TARGET = 1.02
"""The default target imbalance: bytes on the fullest ps over the mean."""


class UnknownSizesError(Error, ValueError):
    """The sizes of a model's variables cannot be determined."""


class NotAModelError(Error, TypeError):
    """The function to plan for does not return a model."""


def check_arguments(num_ps: int, balance: str, target: float) -> None:
    """Checks the arguments of a plan before its model is built."""
    # A bool is an int to Python.
    if isinstance(num_ps, bool) or not isinstance(num_ps, int) or num_ps < 1:
        raise ValueError(
            f"num_ps must be a number of ps, at least 1; received {num_ps!r}"
        )
    if balance not in BALANCES:
        raise ValueError(f"balance must be one of {BALANCES}; received {balance!r}")
    # At 1 there is no slack: the planner divides by `target - 1`. NaN fails this
    # comparison.
    if not 1 < target < math.inf:
        raise ValueError(
            "target must be an imbalance above 1, for example 1.02, that is 2% above the "
            f"mean; received {target!r}"
        )
