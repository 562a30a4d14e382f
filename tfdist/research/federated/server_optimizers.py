"""Server optimizers, which apply the update of a round.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021: the mean of what clients changed
is a pseudo-gradient. Each optimizer is a value; its state is passed in and returned.
"""

import dataclasses
from typing import NamedTuple, Protocol

import numpy as np


class ServerState(NamedTuple):
    """The moments of the updates so far: (parameters,) each."""

    momentum: np.ndarray
    second_moment: np.ndarray


class ServerOptimizer(Protocol):
    """Makes the next weights of the last ones and the aggregated update."""

    def initial(self, weights: np.ndarray) -> ServerState:
        """Returns the state before the first round."""

    def apply(
        self, weights: np.ndarray, update: np.ndarray, state: ServerState
    ) -> tuple[np.ndarray, ServerState]:
        """Returns the next weights, and the state after this round.

        Args:
            weights: The weights that clients began with: (parameters,).
            update: The rule's aggregate of the clients' changes: (parameters,).
            state: The last one.
        """


@dataclasses.dataclass(frozen=True)
class FedAvgM:
    """Momentum on the server: v = m v + update, w = w + r v.

    With the defaults it adds the update: plain federated averaging. Source: Hsu, Qi and
    Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019.

    Args:
        learning_rate: r, above 0.
        momentum: m, from 0 to below 1.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _check(self.learning_rate, momentum=self.momentum)

    def initial(self, weights: np.ndarray) -> ServerState:
        """Returns the state before the first round: zeros."""
        return ServerState(np.zeros_like(weights), np.zeros_like(weights))

    def apply(
        self, weights: np.ndarray, update: np.ndarray, state: ServerState
    ) -> tuple[np.ndarray, ServerState]:
        """Returns the next weights, and the state after this round."""
        momentum = self.momentum * state.momentum + update
        return weights + self.learning_rate * momentum, state._replace(
            momentum=momentum
        )


@dataclasses.dataclass(frozen=True)
class FedAdam:
    """Adam on the server, without correction of its bias.

    m = b1 m + (1 - b1) update, v = b2 v + (1 - b2) update², w = w + r m / (sqrt(v) + t).
    Source: Reddi et al. 2021, algorithm 2.

    Args:
        learning_rate: r, above 0.
        beta_1: b1, from 0 to below 1.
        beta_2: b2, from 0 to below 1.
        adaptivity: t, above 0: the smaller, the more the step depends on the sign alone.
    """

    learning_rate: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    adaptivity: float = 1e-3

    def __post_init__(self) -> None:
        _check(self.learning_rate, beta_1=self.beta_1, beta_2=self.beta_2)
        if not 0 < self.adaptivity < np.inf:
            raise ValueError(f"the adaptivity is above 0; received {self.adaptivity}")

    def initial(self, weights: np.ndarray) -> ServerState:
        """Returns the state before the first round: v is t², as in the paper."""
        return ServerState(
            np.zeros_like(weights), np.full_like(weights, self.adaptivity**2)
        )

    def apply(
        self, weights: np.ndarray, update: np.ndarray, state: ServerState
    ) -> tuple[np.ndarray, ServerState]:
        """Returns the next weights, and the state after this round."""
        momentum = self.beta_1 * state.momentum + (1 - self.beta_1) * update
        second = self.beta_2 * state.second_moment + (1 - self.beta_2) * update**2
        step = self.learning_rate * momentum / (np.sqrt(second) + self.adaptivity)
        return weights + step, ServerState(momentum, second)


def _check(learning_rate: float, **decays: float) -> None:
    if not 0 < learning_rate < np.inf:
        raise ValueError(f"the learning rate is above 0; received {learning_rate}")
    for name, decay in decays.items():
        if not 0 <= decay < 1:
            raise ValueError(f"{name} is from 0 to below 1; received {decay}")
