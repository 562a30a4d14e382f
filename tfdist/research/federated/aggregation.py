"""The seam of the rules that make one update of many, and the plain mean."""

import dataclasses
from typing import Protocol

import numpy as np


class Aggregation(Protocol):
    """Makes one update of the updates of all clients of a round."""

    def check(self, clients: int) -> None:
        """Checks that a round has enough clients.

        Raises:
            ValueError: If it has fewer than the rule needs, with as many attackers.
        """

    def aggregate(self, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns the update of the round.

        Args:
            updates: Floats, a row per client: (clients, parameters).
            weights: The number of examples of each client, above 0: (clients,).

        Returns:
            (parameters,), in the dtype of the updates.

        Raises:
            ValueError: If the arrays do not fit, hold numbers that are not finite, or come
                from too few clients.
        """


@dataclasses.dataclass(frozen=True)
class WeightedMean:
    """The mean, weighted by the numbers of examples: federated averaging.

    One attacker can move it anywhere (Blanchard et al. 2017, lemma 1). Source: McMahan et
    al. 2017. Cost: O(n d) for n clients and d parameters.
    """

    def check(self, clients: int) -> None:
        """Checks that there is a client.

        Raises:
            ValueError: If there is none.
        """
        check_clients("WeightedMean", clients, attackers=0, needed=1, bound="n >= 1")

    def aggregate(self, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns the weighted mean of all updates."""
        self.check(len(updates))
        check_updates(updates, weights)
        shares = np.asarray(weights, dtype=np.float64)
        return (shares / shares.sum() @ updates).astype(updates.dtype)


@dataclasses.dataclass(frozen=True)
class NormClipping:
    """Shortens each update to a norm, then applies another rule.

    The share of one client is bounded, so attacks by large updates fail; attacks of the
    size of honest updates pass (Sun et al., "Can You Really Backdoor Federated Learning?",
    2019).

    Args:
        max_norm: The largest Euclidean norm of an update, above 0.
        rule: The rule for the clipped updates.
    """

    max_norm: float
    rule: Aggregation = WeightedMean()

    def __post_init__(self) -> None:
        if not 0 < self.max_norm < np.inf:
            raise ValueError(f"a norm is above 0 and finite; received {self.max_norm}")

    def check(self, clients: int) -> None:
        """Checks that the rule that follows has enough clients.

        Raises:
            ValueError: If it has not.
        """
        self.rule.check(clients)

    def aggregate(self, updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns the rule's aggregate of the clipped updates."""
        check_updates(updates, weights)
        return self.rule.aggregate(clipped(updates, self.max_norm), weights)


def clipped(updates: np.ndarray, max_norm: float) -> np.ndarray:
    """Returns updates (one, or a row each), shortened where longer than a Euclidean norm."""
    # The norm of an update may be 0.
    factors = max_norm / np.maximum(norm(updates), max_norm)
    return (updates * factors[..., None]).astype(updates.dtype)


def norm(updates: np.ndarray) -> np.ndarray:
    """Returns Euclidean norms over the last axis, in float64, without overflow."""
    largest = np.abs(updates).max(axis=-1, initial=0).astype(np.float64)
    scale = np.where(largest > 0, largest, 1)
    return scale * np.linalg.norm(updates / scale[..., None], axis=-1)


def check_clients(
    rule: str, clients: int, attackers: int, needed: int, bound: str
) -> None:
    """Checks that the attackers are as few as a rule's theorem asks."""
    is_number = isinstance(attackers, int | np.integer)
    if isinstance(attackers, bool) or not is_number or attackers < 0:
        raise ValueError(
            f"attackers of {rule} must be 0 or more; received {attackers!r}"
        )
    if clients < needed:
        raise ValueError(
            f"{rule} with f = {attackers} attackers needs n = {needed} or more clients "
            f"in a round ({bound}); received {clients}. Have more clients take part, or "
            "expect fewer attackers"
        )


def check_updates(updates: np.ndarray, weights: np.ndarray) -> None:
    """Checks that updates and weights fit each other, are finite, and weights above 0."""
    if updates.ndim != 2 or np.shape(weights) != (len(updates),):
        raise ValueError(
            "updates have shape (clients, parameters), and weights (clients,); received "
            f"{updates.shape} and {np.shape(weights)}"
        )
    if not np.issubdtype(updates.dtype, np.floating):
        raise ValueError(f"updates must be floats; received {updates.dtype}")
    finite = np.isfinite(updates).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"updates are finite; those of rows {np.flatnonzero(~finite).tolist()} are "
            "not. Leave them out: np.isfinite(updates).all(axis=1) tells which"
        )
    if not (np.isfinite(weights) & (np.asarray(weights) > 0)).all():
        raise ValueError(
            "each client's weight is its number of examples, above 0; received "
            f"{np.asarray(weights).tolist()}. Leave clients without data out"
        )
