"""The question that every mixing policy answers."""

from collections.abc import Collection
from typing import Protocol, runtime_checkable


@runtime_checkable
class Mixing(Protocol):
    """With whom a participant exchanges models in a round, and with which weights.

    Participants are numbered from 0. All of them must give the same answer for the same
    arguments: a policy keeps no state, and draws nothing at random without a seed.
    """

    def on(self, participants: int) -> "Mixing":
        """Returns this policy for a number of participants.

        Raises:
            ValueError: If it cannot be used with that many.
        """

    def weights(
        self, participant: int, round_index: int, present: Collection[int]
    ) -> dict[int, float]:
        """Returns the weights with which a participant averages models.

        Args:
            participant: The one that asks; it must be present.
            round_index: The number of mixing rounds before this one.
            present: The participants that take part; others have left.

        Returns:
            The weight of each model that it needs, by participant and in ascending
            order. Its own is among them unless that weight is zero. All are positive and
            sum to one. Over all those present, the weights of each model sum to one too:
            mixing keeps the mean of all models.

        Raises:
            ValueError: If the participant is not present.
        """


def check_present(participant: int, present: Collection[int]) -> None:
    """Checks that one that asks for its weights takes part.

    Raises:
        ValueError: If it does not.
    """
    if participant not in present:
        raise ValueError(
            f"only participants that are present mix: {sorted(present)}; received "
            f"participant {participant}"
        )
