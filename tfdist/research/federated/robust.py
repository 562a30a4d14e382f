"""Rules by coordinates and by distance that withstand attackers.

None of them uses the numbers of examples: an attacker would claim to have many.
"""

import dataclasses

import numpy as np

from tfdist.research.federated.aggregation import check_clients, check_updates, norm


class _WithstandsMinority:
    """The common part of rules that take fewer than half of the clients as attackers."""

    attackers: int

    def check(self, clients: int) -> None:
        """Checks that attackers are in the minority.

        Raises:
            ValueError: If they need not be.
        """
        check_clients(
            type(self).__name__,
            clients,
            self.attackers,
            needed=2 * self.attackers + 1,
            bound="n >= 2f + 1",
        )


@dataclasses.dataclass(frozen=True)
class Median(_WithstandsMinority):
    """The median of each coordinate.

    With fewer than half of the clients attackers, it is between the least and the largest
    honest value in each coordinate. Source: Yin et al., "Byzantine-Robust Distributed
    Learning: Towards Optimal Statistical Rates", ICML 2018. Cost: O(n d).

    Args:
        attackers: f, the most that there can be; n >= 2f + 1.
    """

    attackers: int = 0

    def aggregate(self, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns the median of each coordinate, regardless of the weights."""
        self.check(len(updates))
        check_updates(updates, weights)
        half = len(updates) // 2
        middle = np.partition(updates, [half, (len(updates) - 1) // 2], axis=0)
        # Halved first: the sum of two large numbers overflows.
        return middle[half] / 2 + middle[(len(updates) - 1) // 2] / 2


@dataclasses.dataclass(frozen=True)
class TrimmedMean(_WithstandsMinority):
    """The mean of each coordinate without its f least and f largest values.

    It is between the least and the largest honest value in each coordinate. Source: Yin et
    al., ICML 2018. Cost: O(n d log n).

    Args:
        attackers: f, the most that there can be; n >= 2f + 1.
    """

    attackers: int

    def aggregate(self, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns the trimmed mean of each coordinate, regardless of the weights."""
        self.check(len(updates))
        check_updates(updates, weights)
        kept = np.sort(updates, axis=0)[self.attackers : len(updates) - self.attackers]
        mean = kept.mean(axis=0, dtype=np.float64)
        # Rounding must not take the mean out of what was kept.
        return np.clip(mean, kept[0], kept[-1]).astype(updates.dtype)


@dataclasses.dataclass(frozen=True)
class GeometricMedian(_WithstandsMinority):
    """The point with the least sum of Euclidean distances to all updates.

    Where honest updates are within r of a point, it is within 2 (n - f) / (n - 2f) r of
    that point, for anything attackers send (Minsker, "Geometric median and robust estimation in
    Banach spaces", Bernoulli 2015, lemma 2.1). As a rule of federated learning: Pillutla, Kakade
    and Harchaoui, "Robust Aggregation for Federated Learning", 2022. Computed by Weiszfeld's
    algorithm as modified by Vardi and Zhang, "The multivariate L1-median and associated data
    depth", PNAS 2000. Cost: O(n d) per iteration.

    Args:
        attackers: f, the most that there can be; n >= 2f + 1.
        tolerance: It stops when the point moves less than this part of the spread.
        iterations: The most there are.
    """

    attackers: int = 0
    tolerance: float = 1e-9
    iterations: int = 1000

    def aggregate(self, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns the geometric median, regardless of the weights."""
        self.check(len(updates))
        check_updates(updates, weights)
        points = updates.astype(np.float64)
        point = np.median(points, axis=0)
        # Attackers set the largest distance, but not the median one.
        spread = float(np.median(norm(points - point)))
        # Nearer than this, a point is at an update, where 1 / distance means nothing.
        zero = max(spread * 1e-12, np.finfo(np.float64).tiny)
        for _ in range(self.iterations):
            following = _weiszfeld(points, point, zero)
            moved = norm(following - point)
            point = following
            if moved > self.tolerance * spread:
                continue
            # Beside an update, which outweighs all others there, steps are short wherever
            # the least sum is. At the update itself, it is known to hold the point or not.
            nearest = points[np.argmin(norm(points - point))]
            beyond = _weiszfeld(points, nearest, zero)
            if norm(points - beyond).sum() >= norm(points - point).sum() * _NO_LESS:
                break
            point = beyond
        return point.astype(updates.dtype)


_NO_LESS = 1 - 1e-12
"""The factor by which rounding alone may shrink a sum of distances."""


def _weiszfeld(points: np.ndarray, point: np.ndarray, zero: float) -> np.ndarray:
    """Returns the next point: nearer points pull more, and one at the point holds it."""
    distances = norm(points - point)
    here = distances <= zero
    if here.all():
        return point
    nearness = 1 / distances[~here]
    mean = nearness / nearness.sum() @ points[~here]
    pull = norm(mean - point) * nearness.sum()
    stay = 1.0 if pull == 0 else min(1.0, here.sum() / pull)
    return (1 - stay) * mean + stay * point


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
        """Returns the mean of the selected updates, regardless of the weights."""
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
        # The nearest to each is itself.
        return np.sort(squares, axis=1)[:, 1 : near + 1].sum(axis=1)
