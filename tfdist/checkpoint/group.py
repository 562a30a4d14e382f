"""The processes that run a script, as far as a `fit` with checkpoints needs them."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Group(Protocol):
    """The processes that run the script, each of which calls these at the same steps."""

    is_chief: bool

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns the integers of each process, a row for each."""
        ...

    def bytes_of_chief(self, data: bytes) -> bytes:
        """Returns what the chief has passed."""
        ...


class OneProcess:
    """The group of a script that one process runs."""

    is_chief = True

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns this process's integers."""
        return np.array([numbers], np.int64)

    def bytes_of_chief(self, data: bytes) -> bytes:
        """Returns the data."""
        return data
