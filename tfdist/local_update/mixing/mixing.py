"""Interface of mixing policies, and two of them: the mean, and gossip."""

import dataclasses
from collections.abc import Callable, Collection
from typing import Protocol, runtime_checkable

from tfdist.local_update.mixing.topology import Topology


@runtime_checkable
class Mixing(Protocol):
    """Chooses the partners and the weights with which a participant mixes models.

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
    """Checks that one that asks for its weights takes part."""
    if participant not in present:
        raise ValueError(
            f"only participants that are present mix: {sorted(present)}; received "
            f"participant {participant}"
        )


@dataclasses.dataclass(frozen=True)
class Mean:
    """Each participant ends with the mean of the models of all: local SGD.

    With one local step of SGD between rounds, this is synchronous training to rounding
    (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019). Cost: an
    all-reduce of the model per round, 2(n-1)/n times its bytes in and out of each of n
    participants.
    """

    def on(self, participants: int) -> "Mean":
        """Returns this policy: it is the same for any number of participants.

        Raises:
            ValueError: If there are no participants.
        """
        if participants < 1:
            raise ValueError(f"a mean is over 1 or more; received {participants=}")
        return self

    def weights(
        self, participant: int, round_index: int, present: Collection[int]
    ) -> dict[int, float]:
        """Returns equal weights of all that are present.

        Raises:
            ValueError: If the participant is not present.
        """
        check_present(participant, present)
        return {each: 1 / len(present) for each in sorted(present)}


@dataclasses.dataclass(frozen=True)
class Gossip:
    """Each participant averages with its neighbours: no centre, no all-reduce.

    Models come to agree at a rate that the graph's spectral gap sets: each round
    multiplies their distance from the mean by one minus the gap, or less. The denser the
    graph, the larger the gap, and the more bytes per round. `python -m tfdist.local_update.mixing`
    prints both (Lian et al., "Can Decentralized Algorithms Outperform Centralized
    Algorithms?", NeurIPS 2017).

    Cost: in each round a participant receives the model of each neighbour, once.

    Args:
        topology: The graph, such as `tfdist.mixing.ring(4)`; or a function from the number
            of participants to a graph, such as `tfdist.mixing.ring`.
    """

    topology: Topology | Callable[[int], Topology]

    def __post_init__(self) -> None:
        if not (isinstance(self.topology, Topology) or callable(self.topology)):
            raise ValueError(
                "Gossip takes a topology, such as tfdist.mixing.ring(4), or a function "
                "from the number of participants to one, such as tfdist.mixing.ring; a "
                "networkx graph goes through tfdist.mixing.from_networkx, a matrix "
                f"through tfdist.mixing.from_matrix. Received {self.topology!r}"
            )

    def on(self, participants: int) -> "Gossip":
        """Returns this policy on a graph of a number of participants.

        Raises:
            ValueError: If its topology is one for another number.
        """
        if not isinstance(self.topology, Topology):
            return Gossip(self.topology(participants)).on(participants)
        if self.topology.participants != tuple(range(participants)):
            raise ValueError(
                f"{self.topology} needs {len(self.topology.participants)} participants, "
                f"and there are {participants}. Make the topology for {participants}, or "
                "give Gossip the function, such as tfdist.mixing.ring"
            )
        return self

    def weights(
        self, participant: int, round_index: int, present: Collection[int]
    ) -> dict[int, float]:
        """Returns the weights of the participant's own model and its neighbours'.

        Raises:
            ValueError: If the participant is not present, if one that is present is not in
                the graph, or if the number of participants is not known yet.
        """
        check_present(participant, present)
        if not isinstance(self.topology, Topology):
            raise ValueError(
                "the number of participants is not known yet: call "
                "on(participants) first, and ask the policy that it returns"
            )
        return self.topology.among(present).weights(participant, round_index)
