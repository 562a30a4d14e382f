"""Averages with neighbours in a graph."""

import dataclasses
from collections.abc import Callable, Collection

from tfdist.mixing.mixing import check_present
from tfdist.mixing.topology import Topology


@dataclasses.dataclass(frozen=True)
class Gossip:
    """Each participant averages with its neighbours: no centre, no all-reduce.

    Models come to agree at a rate that the graph's spectral gap sets: each round
    multiplies their distance from the mean by one minus the gap, or less. The denser the
    graph, the larger the gap, and the more bytes per round. `python -m tfdist.mixing`
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
