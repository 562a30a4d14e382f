"""Behavior of simulated clients besides training: dropout, delays and attacks."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfdist.research.federated.attacks import Attack

_VANISH = 3  # Behind a seed, so that draws for different purposes differ.


class Answers(NamedTuple):
    """The clients that answer in a round, and its end in simulated seconds.

    `vanished` were asked, and send nothing; the updates of `late` come after the deadline.
    """

    answered: tuple[int, ...]
    vanished: tuple[int, ...]
    late: tuple[int, ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class ClientBehavior:
    """The behavior of a simulation's clients.

    Args:
        dropout: The probability that a client vanishes in the middle of a round, from 0 to
            1, or the numbers of those that always do.
        seconds: How long each client takes for a round, one number per client; 0 by default.
        attackers: The numbers of those that attack.
        attack: The attack that replaces their updates. Attackers need none if their
            training data is poisoned already.
        seed: It decides who vanishes.

    Raises:
        ValueError: If a number is out of range.
    """

    dropout: float | Sequence[int] = 0.0
    seconds: Sequence[float] | None = None
    attackers: Sequence[int] = ()
    attack: Attack | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.dropout, int | float) and not 0 <= self.dropout <= 1:
            raise ValueError(
                f"dropout must be a probability from 0 to 1, or numbers of clients; "
                f"received {self.dropout}"
            )
        if self.seconds is not None and not all(each >= 0 for each in self.seconds):
            raise ValueError(f"clients take 0 seconds or more; received {self.seconds}")
        if self.attack is not None and not len(self.attackers):
            raise ValueError(
                f"an attack needs attackers=, their numbers; received {self.attack} alone"
            )

    def check(self, num_clients: int) -> None:
        """Checks that the numbers are those of clients.

        Raises:
            ValueError: If one is not, or `seconds` has another length.
        """
        vanishing = () if isinstance(self.dropout, int | float) else self.dropout
        for name, numbers in (("attackers", self.attackers), ("dropout", vanishing)):
            if strangers := sorted(set(numbers) - set(range(num_clients))):
                raise ValueError(
                    f"{name} are numbers of clients, 0 to {num_clients - 1}; received "
                    f"{strangers}"
                )
        if self.seconds is not None and len(self.seconds) != num_clients:
            raise ValueError(
                f"seconds has a number for each of {num_clients} clients; received "
                f"{len(self.seconds)}"
            )

    def answers(
        self, round_index: int, clients: Sequence[int], deadline: float | None
    ) -> Answers:
        """Returns which clients of a round answer, and when it ends.

        A server waits for those that vanished until its deadline, and without one until
        all others have answered.
        """
        vanished = tuple(each for each in clients if self._vanishes(round_index, each))
        limit = math.inf if deadline is None else deadline
        there = [each for each in clients if each not in vanished]
        late = tuple(each for each in there if self._seconds(each) > limit)
        answered = tuple(each for each in there if each not in late)
        seconds = max((self._seconds(each) for each in answered), default=0.0)
        if deadline is not None and (late or vanished):
            seconds = deadline
        return Answers(answered, vanished, late, seconds)

    def sent(self, updates: np.ndarray, clients: Sequence[int]) -> np.ndarray:
        """Returns the updates of some clients, with those that attackers send instead."""
        rows = [row for row, each in enumerate(clients) if each in self.attackers]
        if self.attack is None or not rows:
            return updates
        return self.attack.apply(updates, rows)

    def _vanishes(self, round_index: int, client: int) -> bool:
        if not isinstance(self.dropout, int | float):
            return client in self.dropout
        # A generator for each client: who else is asked does not change whether this
        # one vanishes.
        rng = np.random.default_rng((self.seed, round_index, client, _VANISH))
        return bool(rng.random() < self.dropout)

    def _seconds(self, client: int) -> float:
        return 0.0 if self.seconds is None else float(self.seconds[client])
