"""The choice of the clients that take part in a round."""

import dataclasses
import math
from collections.abc import Collection
from typing import Protocol

import numpy as np


class ClientSampling(Protocol):
    """Chooses the clients of a round from those that are available."""

    def clients(
        self,
        round_index: int,
        num_clients: int,
        available: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        """Returns the clients of a round, in ascending order.

        Args:
            round_index: The number of rounds before this one.
            num_clients: All that belong to the federation: 0 to num_clients - 1.
            available: The clients that could take part now; by default all.

        Raises:
            ValueError: If one that is available does not belong to the federation.
        """


@dataclasses.dataclass(frozen=True)
class _SeededSampling:
    """Draws clients by a seed and the number of the round."""

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(
                "the fraction of clients in a round must be above 0 and at most 1; "
                f"received {self.fraction}"
            )

    def clients(
        self,
        round_index: int,
        num_clients: int,
        available: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        """Returns the clients of a round, in ascending order."""
        found = _available(num_clients, available)
        rng = np.random.default_rng((self.seed, round_index))
        return tuple(sorted(self._drawn(rng, found, num_clients)))

    def _drawn(
        self, rng: np.random.Generator, found: list[int], num_clients: int
    ) -> list[int]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class FixedSampling(_SeededSampling):
    """Draws the same number of clients in each round, without replacement.

    That is max(C * K, 1) of K clients, and all that are available if those are fewer
    (McMahan et al. 2017, algorithm 1). The same seed and round give the same clients.

    Args:
        fraction: C, above 0 and at most 1, of all clients.
        seed: The seed of all rounds.
    """

    fraction: float = 1.0

    def _drawn(
        self, rng: np.random.Generator, found: list[int], num_clients: int
    ) -> list[int]:
        # 0.07 * 100 is 7.000000000000001, which must be 7.
        number = max(1, math.floor(self.fraction * num_clients + 1e-9))
        drawn = rng.choice(found, size=min(number, len(found)), replace=False)
        return list(drawn.tolist())


class PoissonSampling(_SeededSampling):
    """Draws each available client with the same probability, by itself.

    Rounds have different numbers of clients, perhaps none. This is what the accountant of
    differential privacy assumes (McMahan et al., "Learning Differentially Private Recurrent
    Language Models", ICLR 2018).

    Args:
        fraction: The probability, above 0 and at most 1.
        seed: The seed of all rounds. Keep it secret where it stands for privacy.
    """

    def _drawn(
        self, rng: np.random.Generator, found: list[int], num_clients: int
    ) -> list[int]:
        # A draw for each client of the federation: who else is there changes nothing.
        drawn = rng.random(num_clients) < self.fraction
        return [each for each in found if drawn[each]]


def _available(num_clients: int, available: Collection[int] | None) -> list[int]:
    everyone = range(num_clients)
    if available is None:
        return list(everyone)
    if strangers := sorted(set(available) - set(everyone)):
        raise ValueError(
            f"the federation has clients 0 to {num_clients - 1}; received {strangers} "
            "among those available"
        )
    return sorted(set(available))
