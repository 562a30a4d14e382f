"""A graph of participants with the weights of its edges."""

import dataclasses
import functools
import math
from collections.abc import Collection

import numpy as np

from tfdist.local_update.mixing import doubly_stochastic


# Equal only to itself: arrays have no hash, and `_among` keeps what it finds by graph.
@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    """The weights with which participants average their models, round by round.

    Row i of a matrix has the weights with which participant i averages the models of all:
    if X has a model per row, `matrix @ X` has the models after a round. Rows and columns
    sum to one, so the mean of all models stays what it is.

    Args:
        name: The graph's common name.
        matrices: Doubly stochastic, (n, n) each, one per round; then the first again.
        participants: Their numbers, in the order of the rows; 0 to n - 1 by default.

    Raises:
        ValueError: If a matrix is not doubly stochastic, if the graph is not connected, or
            if models would never agree.
    """

    name: str
    matrices: tuple[np.ndarray, ...]
    participants: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        matrices = tuple(np.array(each, dtype=np.float64) for each in self.matrices)
        if not matrices:
            raise ValueError("a topology has 1 or more matrices; received none")
        for each in matrices:
            doubly_stochastic.check(each)
            # Graphs without some participants are kept, and computed from it once.
            each.flags.writeable = False
        if len({len(each) for each in matrices}) > 1:
            raise ValueError(
                "the matrices of all rounds have the same participants; received shapes "
                f"{', '.join(str(each.shape) for each in matrices)}"
            )
        participants = self.participants or range(len(matrices[0]))
        object.__setattr__(self, "matrices", matrices)
        object.__setattr__(self, "participants", tuple(participants))
        self._check_agreement()

    def _check_agreement(self) -> None:
        groups = doubly_stochastic.parts(np.sum(self.matrices, axis=0))
        if len(groups) > 1:
            named = [[self.participants[row] for row in group] for group in groups]
            raise ValueError(
                "a topology is connected, or models never agree; received "
                f"{len(named)} parts without an edge between them: "
                f"{', '.join(str(group) for group in named[:4])}. Add edges between them"
            )
        # Connected is not enough: two that only swap their models never agree.
        if self.second_eigenvalue > 1 - 1e-9:
            raise ValueError(
                "models never agree: the second eigenvalue of the weights has modulus "
                f"{self.second_eigenvalue:.12g}, and must be below 1. Give each "
                "participant a positive weight for its own model"
            )

    def __str__(self) -> str:
        return f"{self.name} of {len(self.participants)}"

    def __repr__(self) -> str:
        return f"<Topology {self}>"

    def among(self, present: Collection[int]) -> "Topology":
        """Returns the graph without the participants that have left.

        Neighbours of one that has left become neighbours of each other, with weights that
        still sum to one. So a connected graph stays connected, whoever leaves. If the
        weights are symmetric, the spectral gap does not become smaller.

        Raises:
            ValueError: If nobody is present, or somebody who is not in the graph.
        """
        return _among(self, frozenset(present))

    def matrix(self, round_index: int = 0) -> np.ndarray:
        """Returns the weights of a round: float64, a row and a column per participant."""
        return self.matrices[round_index % len(self.matrices)]

    def weights(self, participant: int, round_index: int = 0) -> dict[int, float]:
        """Returns the weights above zero with which a participant averages models.

        Raises:
            ValueError: If it is not in the graph.
        """
        row = self.matrix(round_index)[self._row(participant)]
        return {
            other: float(weight)
            for other, weight in zip(self.participants, row, strict=True)
            if weight > 0
        }

    def neighbours(self, participant: int) -> tuple[int, ...]:
        """Returns the participants whose models one receives, in some round.

        Raises:
            ValueError: If it is not in the graph.
        """
        self._row(participant)
        return tuple(sorted(one for one, other in self.edges if other == participant))

    @functools.cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (sender, receiver) of all rounds; both directions of an undirected edge."""
        receivers, senders = np.nonzero(np.sum(self.matrices, axis=0))
        return tuple(
            sorted(
                (self.participants[sender], self.participants[receiver])
                for sender, receiver in zip(senders, receivers, strict=True)
                if sender != receiver
            )
        )

    @functools.cached_property
    def second_eigenvalue(self) -> float:
        """The factor by which the distance from the mean shrinks per round, 0 to 1.

        The second largest modulus of an eigenvalue; with more than one matrix, of their
        product, as the geometric mean over its rounds. It bounds each round of one
        symmetric matrix, and is the rate over many rounds of any.
        """
        period = functools.reduce(lambda product, each: each @ product, self.matrices)
        second = doubly_stochastic.second_eigenvalue(period)
        # Rounding leaves about 1e-17 of a zero, whose root would look like a rate.
        return 0.0 if second < 1e-12 else second ** (1 / len(self.matrices))

    @property
    def spectral_gap(self) -> float:
        """One minus the second eigenvalue: 1 if a period of rounds gives the mean."""
        return 1 - self.second_eigenvalue

    def rounds_to_shrink(self, factor: float) -> int:
        """Returns after how many rounds models are nearer to their mean by a factor.

        Args:
            factor: The rest of the distance from the mean, above 0 and below 1.

        Raises:
            ValueError: If the factor is not between 0 and 1.
        """
        if not 0 < factor < 1:
            raise ValueError(
                f"a distance shrinks by a factor between 0 and 1; received {factor}"
            )
        if self.second_eigenvalue == 0:
            return len(self.matrices)
        return math.ceil(math.log(factor) / math.log(self.second_eigenvalue))

    @property
    def degree(self) -> float:
        """The models that the busiest participant receives per round, on average."""
        return float(max(self._received() / len(self.matrices)))

    def bytes_per_round(self, model_bytes: float) -> float:
        """Returns the bytes that the busiest participant receives in a round.

        Args:
            model_bytes: The bytes of one model on the wire.
        """
        return self.degree * model_bytes

    def _received(self) -> np.ndarray:
        stacked = np.stack(self.matrices) > 0
        return stacked.sum(axis=(0, 2)) - stacked.diagonal(axis1=1, axis2=2).sum(axis=0)

    def _row(self, participant: int) -> int:
        if participant not in self.participants:
            raise ValueError(
                f"the participants of {self} are {list(self.participants)}; received "
                f"{participant}"
            )
        return self.participants.index(participant)


@functools.lru_cache(maxsize=64)
def _among(topology: Topology, present: frozenset[int]) -> Topology:
    if not present or not present <= set(topology.participants):
        raise ValueError(
            f"those present are 1 or more of {list(topology.participants)}; received "
            f"{sorted(present)}"
        )
    if present == set(topology.participants):
        return topology
    keep = [row for row, each in enumerate(topology.participants) if each in present]
    return Topology(
        topology.name,
        tuple(doubly_stochastic.censor(each, keep) for each in topology.matrices),
        tuple(topology.participants[row] for row in keep),
    )
