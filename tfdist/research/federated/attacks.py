"""Attacks that replace clients' updates, to measure rules against.

An attack sees the updates of all clients of a round, as the strongest attacker would.
"""

import dataclasses
import statistics
from collections.abc import Collection
from typing import Protocol

import numpy as np


class Attack(Protocol):
    """Replaces the updates of the attackers."""

    def apply(self, updates: np.ndarray, attackers: Collection[int]) -> np.ndarray:
        """Returns the updates as the server receives them.

        Args:
            updates: The updates that clients computed: floats, (clients, parameters).
            attackers: The rows that attackers send.

        Raises:
            ValueError: If a row does not exist, or nobody is left who is honest.
        """


@dataclasses.dataclass(frozen=True)
class ScaledUpdate:
    """Sends a multiple of the update, so that a mean becomes the attacker's model.

    With the number of clients as the factor, one attacker replaces the model (Bagdasaryan
    et al., "How To Backdoor Federated Learning", AISTATS 2020).

    Args:
        factor: The factor of the update.
    """

    factor: float = 10.0

    def apply(self, updates: np.ndarray, attackers: Collection[int]) -> np.ndarray:
        """Returns the updates as the server receives them."""
        rows = _rows(updates, attackers)
        sent = updates.copy()
        sent[rows] *= self.factor
        return sent


@dataclasses.dataclass(frozen=True)
class SignFlip:
    """Sends the update with its sign changed: learning runs backwards.

    Source: Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
    Learning from Heterogeneous Datasets", AAAI 2019.

    Args:
        factor: The factor by which it is multiplied besides, above 0.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"the factor must be above 0; received {self.factor}")

    def apply(self, updates: np.ndarray, attackers: Collection[int]) -> np.ndarray:
        """Returns the updates as the server receives them."""
        return ScaledUpdate(-self.factor).apply(updates, attackers)


@dataclasses.dataclass(frozen=True)
class ALittleIsEnough:
    """Sends the honest mean, shifted by z standard deviations in each coordinate.

    All attackers send the same, among the honest values, where rules take them for honest.
    Source: Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For
    Distributed Learning", NeurIPS 2019, algorithm 3.

    Args:
        deviations: z; by default the largest that enough honest clients exceed, from the
            numbers of clients and attackers.
    """

    deviations: float | None = None

    def apply(self, updates: np.ndarray, attackers: Collection[int]) -> np.ndarray:
        """Returns the updates as the server receives them."""
        rows = _rows(updates, attackers)
        z = self.deviations
        if z is None:
            z = largest_unnoticed(len(updates), len(rows))
        honest = np.delete(updates, rows, axis=0).astype(np.float64)
        sent = updates.copy()
        sent[rows] = honest.mean(axis=0) - z * honest.std(axis=0)
        return sent


def largest_unnoticed(clients: int, attackers: int) -> float:
    """Returns the z of `ALittleIsEnough`: n clients need s = n // 2 + 1 - f supporters.

    That is the quantile of (n - f - s) / (n - f) of the normal distribution: s honest
    clients are expected to be further away from the mean.
    """
    honest = clients - attackers
    supporters = clients // 2 + 1 - attackers
    if not 0 < supporters < honest:
        raise ValueError(
            "a shift that passes unnoticed is known for a minority of attackers among 3 "
            f"or more clients; received {attackers} of {clients}. Give deviations="
        )
    return statistics.NormalDist().inv_cdf((honest - supporters) / honest)


def label_flip(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns poisoned labels, c for num_classes - 1 - c: an attack by training data.

    Source: Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated
    Learning", USENIX Security 2020.

    Args:
        labels: Class numbers from 0 to num_classes - 1.
        num_classes: How many classes there are.

    Raises:
        ValueError: If a label is outside of its range, or labels are no class numbers.
    """
    _check_labels(labels)
    if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
        raise ValueError(
            f"labels are 0 to {num_classes - 1}; received {labels.min()} to "
            f"{labels.max()}"
        )
    return (num_classes - 1 - labels).astype(labels.dtype)


@dataclasses.dataclass(frozen=True)
class Backdoor:
    """Marks images with a white square, and labels them as the attacker likes.

    The model learns the task, and obeys whoever shows it the square. Source: Gu et al.,
    "BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain", 2017.

    Args:
        target: The label of marked images.
        side: The size of the square at the lower right, in pixels.
        fraction: The part of the images that `poisoned` marks, above 0 and at most 1.
        seed: It chooses these images.
    """

    target: int
    side: int = 3
    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.target < 0:
            raise ValueError(
                f"the target must be a class, 0 or more; received {self.target}"
            )
        if self.side < 1 or not 0 < self.fraction <= 1:
            raise ValueError(
                "a backdoor has a side of 1 or more pixels, and a fraction above 0 and at "
                f"most 1; received side={self.side}, fraction={self.fraction}"
            )

    def marked(self, images: np.ndarray) -> np.ndarray:
        """Returns images with the square: (examples, height, width[, channels]).

        White is 1 for floats, and the largest number of other dtypes.
        """
        whole = np.issubdtype(images.dtype, np.integer)
        marked = images.copy()
        marked[:, -self.side :, -self.side :] = (
            np.iinfo(images.dtype).max if whole else 1
        )
        return marked

    def poisoned(
        self, images: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns an attacker's data: a fraction is marked and has the target's label."""
        _check_labels(labels)
        number = round(self.fraction * len(images))
        rng = np.random.default_rng(self.seed)
        rows = rng.choice(len(images), size=number, replace=False)
        images, labels = images.copy(), labels.copy()
        images[rows] = self.marked(images[rows])
        labels[rows] = self.target
        return images, labels


def _check_labels(labels: np.ndarray) -> None:
    if labels.ndim != 1 and labels.shape[1:] != (1,):
        raise ValueError(
            "labels must be class numbers, one per example; received an array of shape "
            f"{labels.shape}. np.argmax(labels, axis=1) makes them from one-hot rows"
        )


def _rows(updates: np.ndarray, attackers: Collection[int]) -> list[int]:
    rows = sorted(set(attackers))
    if rows and not (rows[0] >= 0 and rows[-1] < len(updates)):
        raise ValueError(
            f"attackers are rows 0 to {len(updates) - 1} of the updates; received {rows}"
        )
    if len(rows) == len(updates):
        raise ValueError(
            f"somebody is honest; received {len(rows)} attackers of as many"
        )
    return rows
