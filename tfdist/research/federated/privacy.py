"""Differential privacy of the average: clipping, noise, and their guarantees.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018: each
client's update is clipped to a norm S, the server adds Gaussian noise to the sum, and an
accountant says what an observer of all rounds can learn about whether a client took part.
The server is trusted: it sees updates without noise.
"""

import dataclasses
import math

import numpy as np

from tfdist.research.federated.aggregation import clipped
from tfdist.research.federated.sampling import (
    ClientSampling,
    FixedSampling,
    PoissonSampling,
)


@dataclasses.dataclass(frozen=True)
class GaussianMechanism:
    """Clips each update to a norm, and adds noise in proportion to it.

    Args:
        clip: S, the largest Euclidean norm of a client's update, above 0. None does not
            clip, and allows no noise.
        noise_multiplier: z, 0 or more: the standard deviation of the noise of each
            coordinate of the sum is z S.

    Raises:
        ValueError: If there is noise without a clip.
    """

    clip: float | None = None
    noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"the noise multiplier is 0 or more; received {self.noise_multiplier}"
            )
        if self.clip is None and self.noise_multiplier > 0:
            raise ValueError(
                "noise without a clip guarantees nothing: one client's update may be as "
                "large as it likes, and no noise hides it. Give clip=, the largest norm "
                f"of an update; received noise_multiplier={self.noise_multiplier}"
            )
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"a clip must be a norm above 0; received {self.clip}")

    def mean(
        self, updates: np.ndarray, expected_clients: float, rng: np.random.Generator
    ) -> np.ndarray:
        """Returns the noisy mean of a round; each client has the same weight.

        Args:
            updates: Floats, (clients, parameters), of those that answered; perhaps none.
            expected_clients: The divisor of the sum, which is the sampling probability
                times all clients. The true number would tell who took part.
            rng: The noise's generator. Its seed must be secret.

        Returns:
            (parameters,), in the dtype of the updates.

        Raises:
            ValueError: If the expected number of clients is not above 0.
        """
        if not expected_clients > 0:
            raise ValueError(
                "a sum is divided by the expected number of clients, above 0; received "
                f"{expected_clients}"
            )
        if self.clip is not None:
            updates = clipped(updates, self.clip)
        total = updates.sum(axis=0, dtype=np.float64)
        # Also without any update: no noise would tell that nobody came.
        deviation = self.noise_multiplier * (self.clip or 0.0)
        noisy = total + rng.normal(0.0, deviation, np.shape(total))
        return (noisy / expected_clients).astype(updates.dtype)

    def epsilon(self, sampling: ClientSampling, rounds: int, delta: float) -> float:
        """Returns the epsilon of (epsilon, delta)-privacy, per client, after all rounds.

        Data sets are neighbours if one has a client more, with all of its examples.
        By the accountant of Rényi privacy in `dp-accounting`.

        Args:
            sampling: `PoissonSampling`; or `FixedSampling(1.0)`, where all take part.
            rounds: 1 or more.
            delta: The probability that the guarantee fails, below 1 / clients.

        Raises:
            ImportError: If dp-accounting is not installed.
            ValueError: If the sampling has no guarantee, or a number is out of range.
        """
        fraction = _probability(sampling)
        if rounds < 1 or not 0 < delta < 1:
            raise ValueError(
                "privacy is for 1 or more rounds, and a delta above 0 and below 1; "
                f"received {rounds=}, {delta=}"
            )
        if self.noise_multiplier == 0:
            return math.inf
        try:
            import dp_accounting
        except ImportError as error:
            raise ImportError(
                "epsilon needs dp-accounting, which tfdist does not install by itself: "
                "pip install 'dp-accounting>=0.6' (the extra `privacy`)"
            ) from error
        noise = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        accountant = dp_accounting.rdp.RdpAccountant()
        accountant.compose(dp_accounting.PoissonSampledDpEvent(fraction, noise), rounds)
        return float(accountant.get_epsilon(delta))


def _probability(sampling: ClientSampling) -> float:
    """The probability that each client takes part, independent of the others."""
    if isinstance(sampling, PoissonSampling):
        return sampling.fraction
    if isinstance(sampling, FixedSampling) and sampling.fraction == 1:
        return 1.0
    raise ValueError(
        "the accountant knows PoissonSampling(fraction), where each client takes part by "
        f"itself, and FixedSampling(1.0), where all do; received {sampling}"
    )
