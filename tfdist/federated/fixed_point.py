"""Floats as integers whose sums are exact: what masks are added to. Pure."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class FixedPoint:
    """Integers modulo 2^32 for numbers of a known range, as many as are summed.

    The sum of all clients fits, so it is exact. Each number is rounded once, by at most
    half of `resolution`. A mask that is uniform in all of the integers hides everything.

    Args:
        limit: The largest absolute value of a number, above 0.
        clients: How many are summed at most, 1 to 2^20.
    """

    limit: float
    clients: int

    def __post_init__(self) -> None:
        if not 0 < self.limit < np.inf or not 1 <= self.clients <= 2**20:
            raise ValueError(
                "fixed point needs a finite limit above 0, and 1 to 2^20 clients; "
                f"received limit={self.limit}, clients={self.clients}"
            )

    @property
    def resolution(self) -> float:
        """The value of the integer 1: a power of 2."""
        # A sum reaches clients * (limit + half a resolution), which stays below 2^31.
        bits = math.ceil(math.log2(self.limit * self.clients * (1 + 2**-10)))
        return 2.0 ** (bits - 31)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Returns uint32 of the same shape; negative numbers count down from 2^32.

        Raises:
            ValueError: If a value is outside of the limit, or not finite.
        """
        if not (np.abs(values) <= self.limit).all():
            raise ValueError(
                f"values are finite and from -{self.limit:g} to {self.limit:g}; received "
                f"{np.abs(values).max():g}. Clip them first: an update whose norm is at "
                "most the limit has no larger value"
            )
        scaled = np.rint(np.asarray(values, dtype=np.float64) / self.resolution)
        return scaled.astype(np.int64).astype(np.uint32)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """Returns the sum of values, float64, from the sum of integers modulo 2^32."""
        return total.astype(np.uint32).astype(np.int32) * self.resolution
