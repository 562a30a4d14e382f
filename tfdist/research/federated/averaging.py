"""`FederatedAveraging`: a server's requests to clients, and use of their answers."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from tfdist.research.federated.aggregation import Aggregation, WeightedMean
from tfdist.research.federated.privacy import GaussianMechanism
from tfdist.research.federated.sampling import (
    ClientSampling,
    FixedSampling,
    PoissonSampling,
)
from tfdist.research.federated.server_optimizers import FedAvgM, ServerOptimizer

# Behind a seed, so that draws for different purposes differ.
_ORDER, _STREAM = 1, 2

# The methods that each choice must have, and a choice of tfdist's own.
_CHOICES = {
    "rule": (("aggregate", "check"), "Median()"),
    "server_optimizer": (("initial", "apply"), "FedAdam()"),
    "privacy": (("mean",), "GaussianMechanism(...)"),
    "sampling": (("clients",), "PoissonSampling(0.1)"),
}


@dataclasses.dataclass(frozen=True)
class FederatedAveraging:
    """Federated averaging: the algorithm of an experiment, wherever its clients are.

    In each round, the server sends the model to a fraction of the clients. Each makes
    `local_epochs` passes over its own examples, in batches of `batch_size`, and sends what
    has changed. The rule makes one update of those that came before the deadline, and the
    server's optimizer applies it.

    With one epoch and all examples in one batch (the defaults), each client sends one
    gradient step: FedSGD. Source: McMahan et al., "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017, algorithm 1.

    Args:
        fraction: C, the part of all clients in a round: above 0 and at most 1.
        local_epochs: E, 1 or more.
        batch_size: B, 1 or more; None has all of a client's examples in one batch.
        rule: The rule that makes one update of many.
        server_optimizer: The optimizer that applies it. `FedAvgM()` adds it.
        proximal: mu of FedProx (Li et al., MLSys 2020): mu/2 times the squared distance to
            the round's model is added to each client's loss. 0 or more.
        learning_rate_decay: The factor of the clients' learning rate after each round,
            above 0 and at most 1. On unlike data a rate that does not fall ends away
            from the optimum (Li et al., ICLR 2020, theorem 4).
        deadline: Seconds after which a round ends with whoever answered; None waits for all.
        min_clients: A round with fewer answers changes nothing: 1 or more.
        privacy: Clips and adds noise; all clients then weigh the same.
        sampling: The sampling of clients, in place of `FixedSampling(fraction, seed)`.
        seed: It draws clients, the order of each client's examples, and the noise.
            Where privacy counts, draw it and keep it secret (`secrets.randbits(64)`):
            whoever knows it can subtract the noise.

    Raises:
        TypeError: If a choice is not an object of its kind.
        ValueError: If a number is out of range, or two choices exclude each other.
    """

    fraction: float = 1.0
    local_epochs: int = 1
    batch_size: int | None = None
    rule: Aggregation = WeightedMean()
    server_optimizer: ServerOptimizer = FedAvgM()
    proximal: float = 0.0
    learning_rate_decay: float = 1.0
    deadline: float | None = None
    min_clients: int = 1
    privacy: GaussianMechanism | None = None
    sampling: ClientSampling | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        FixedSampling(self.fraction)  # Checks it.
        self._check_types()
        _check_count("local_epochs", self.local_epochs)
        _check_count("min_clients", self.min_clients)
        if self.batch_size is not None:
            _check_count("batch_size", self.batch_size, " or None, for all examples")
        if not 0 <= self.proximal < math.inf:
            raise ValueError(f"proximal is 0 or more; received {self.proximal}")
        if not 0 < self.learning_rate_decay <= 1:
            raise ValueError(
                "learning_rate_decay must be above 0 and at most 1, the factor per "
                f"round; received {self.learning_rate_decay}"
            )
        if self.deadline is not None and not self.deadline > 0:
            raise ValueError(
                f"a deadline must be above 0 seconds, or None; received {self.deadline}"
            )
        if self.seed < 0:
            raise ValueError(f"a seed is 0 or more; received {self.seed}")
        self._check_choices()

    def _check_types(self) -> None:
        for name, (methods, example) in _CHOICES.items():
            value = getattr(self, name)
            if value is None and name not in ("rule", "server_optimizer"):
                continue
            # A class in place of its object is the usual slip.
            lacks_any = any(not hasattr(value, each) for each in methods)
            if isinstance(value, type) or lacks_any:
                raise TypeError(
                    f"{name} is an object of tfdist.research.federated such as {example}, "
                    f"or your own with {' and '.join(methods)}; received {value!r}"
                )

    def _check_choices(self) -> None:
        if self.sampling is not None and self.fraction != 1.0:
            raise ValueError(
                "give fraction or sampling, which has a fraction of its own; received "
                f"fraction={self.fraction} and {self.sampling}"
            )
        if self.privacy is None:
            return
        if self.rule != WeightedMean():
            raise ValueError(
                "privacy has a mean of its own, of clipped updates that weigh the same; "
                f"received rule={self.rule}. Leave out the rule, or privacy"
            )
        if not isinstance(self.sampler, PoissonSampling | FixedSampling):
            raise ValueError(
                "privacy divides by the expected number of clients, which it knows of "
                f"PoissonSampling and FixedSampling; received {self.sampling}"
            )

    @property
    def sampler(self) -> ClientSampling:
        """The rule that chooses the clients of each round."""
        return self.sampling or FixedSampling(self.fraction, self.seed)

    def learning_rate_factor(self, round_index: int) -> float:
        """Returns the factor of the clients' learning rate in a round."""
        return self.learning_rate_decay**round_index

    def expected_clients(self, num_clients: int) -> float:
        """Returns the expected number of clients in a round with privacy."""
        sampler = self.sampler
        if isinstance(sampler, PoissonSampling):
            return sampler.fraction * num_clients
        return len(sampler.clients(0, num_clients))

    def check_round(self, num_clients: int) -> None:
        """Checks that a round in which everybody answers can count.

        Raises:
            ValueError: If it has fewer clients than the rule or `min_clients` needs.
        """
        if not isinstance(self.sampler, FixedSampling):
            return
        number = len(self.sampler.clients(0, num_clients))
        try:
            self.check_clients(number)
        except ValueError as error:
            raise ValueError(
                f"no round would change the model: {self.sampler.fraction:g} of "
                f"{num_clients} clients are {number}. {error}"
            ) from None

    def check_clients(self, answers: int) -> None:
        """Checks that enough clients answered for a round to count.

        Raises:
            ValueError: If they did not, or are fewer than the rule needs.
        """
        if self.privacy is not None and answers == 0 and self.min_clients == 1:
            return  # The noise alone: leaving it out would tell that nobody was there.
        if answers < self.min_clients:
            raise ValueError(
                f"a round needs the answers of {self.min_clients} clients (min_clients); "
                f"received {answers}"
            )
        self.rule.check(answers)


def _check_count(name: str, value: int, otherwise: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is 1 or more{otherwise}; received {value!r}")


class LocalBatches(NamedTuple):
    """A client's steps in one round.

    Attributes:
        rows: The examples of all batches, one batch after the other: int32.
        sizes: The number of examples in each batch: int32, (steps,).
    """

    rows: np.ndarray
    sizes: np.ndarray


def local_batches(
    averaging: FederatedAveraging, examples: int, round_index: int, client: int
) -> LocalBatches:
    """Returns the batches of a client in a round.

    Each epoch takes all examples, shuffled anew; its last batch may be smaller. The same
    seed, round and client give the same batches, whoever else takes part.
    """
    if examples < 1:
        raise ValueError(
            f"client {client} has no examples, and trains on 1 or more. Leave it out of "
            "the round"
        )
    rng = np.random.default_rng((averaging.seed, round_index, client, _ORDER))
    size = min(averaging.batch_size or examples, examples)
    sizes = [size] * (examples // size) + [examples % size] * (examples % size > 0)
    rows = [rng.permutation(examples) for _ in range(averaging.local_epochs)]
    return LocalBatches(
        np.concatenate(rows).astype(np.int32),
        np.array(sizes * averaging.local_epochs, np.int32),
    )


def random_stream(averaging: FederatedAveraging, round_index: int, client: int) -> int:
    """Returns the seed of a client's random layers, 0 to 2^31 - 1."""
    rng = np.random.default_rng((averaging.seed, round_index, client, _STREAM))
    return int(rng.integers(2**31))
