"""Krum: the update that is nearest to its neighbours."""

import dataclasses

import numpy as np

from tfdist.federated.aggregation import check_clients, check_updates, norm


@dataclasses.dataclass(frozen=True)
class MultiKrum:
    """The mean of the updates with the lowest scores.

    The score of an update is the sum of its squared distances to its n - f - 2 nearest
    neighbours. Weights are not used: an attacker would claim to have many examples. Source:
    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017. Cost: O(n² d).

    Args:
        attackers: f, the most that there can be; n >= 2f + 3.
        selected: How many updates to average, 1 to n - f - 2; by default all of these.
    """

    attackers: int
    selected: int | None = None

    def check(self, clients: int) -> None:
        """Checks that the theorem holds.

        Raises:
            ValueError: If there are too many attackers, or more would be selected than
                neighbours are near.
        """
        check_clients(
            type(self).__name__,
            clients,
            self.attackers,
            needed=2 * self.attackers + 3,
            bound="n >= 2f + 3",
        )
        near = clients - self.attackers - 2
        if self.selected is not None and not 1 <= self.selected <= near:
            raise ValueError(
                f"MultiKrum averages 1 to n - f - 2 = {near} updates; received "
                f"selected={self.selected}"
            )

    def aggregate(self, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns the mean of the selected updates, whatever the weights.

        Raises:
            ValueError: See `Aggregation.aggregate`.
        """
        self.check(len(updates))
        check_updates(updates, weights)
        scores = krum_scores(updates, self.attackers)
        number = self.selected or len(updates) - self.attackers - 2
        # Equal scores go by the updates themselves, never by who sent them first.
        order = sorted(
            range(len(updates)), key=lambda row: (scores[row], updates[row].tobytes())
        )
        chosen = updates[order[:number]]
        return chosen.mean(axis=0, dtype=np.float64).astype(updates.dtype)


@dataclasses.dataclass(frozen=True)
class Krum(MultiKrum):
    """The one update with the lowest score: `MultiKrum(attackers, selected=1)`.

    Slower to train than a mean of several, since it learns from one client per round.
    """

    selected: int | None = dataclasses.field(default=1, init=False)


def krum_scores(updates: np.ndarray, attackers: int) -> np.ndarray:
    """Returns each update's sum of squared distances to its n - f - 2 nearest ones."""
    points = updates.astype(np.float64)
    with np.errstate(over="ignore"):  # Far is far: infinity sorts last.
        squares = np.array([norm(points - each) ** 2 for each in points])
        near = len(points) - attackers - 2
        return np.sort(squares, axis=1)[:, 1 : near + 1].sum(axis=1)
