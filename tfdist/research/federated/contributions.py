"""Contributions of clients to a model, recorded so that they can be removed.

Where the server's step is linear in the updates, the model is its first weights and a sum
with a term per client. Subtracting such terms is the first step of Wu, Zhu and Mitra,
"Federated Unlearning with Knowledge Distillation", 2022. It is not retraining without the
client: the updates of others came from models that it had changed.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tfdist.research.federated.aggregation import WeightedMean
from tfdist.research.federated.averaging import FederatedAveraging
from tfdist.research.federated.client_update import ClientUpdate
from tfdist.research.federated.server_optimizers import FedAvgM, ServerState


class Contributions:
    """The term of each client: (clients that took part) x (parameters).

    Raises:
        ValueError: If the rule is not `WeightedMean()`, or the server optimizer no
            `FedAvgM`: their steps are no sum over clients.
    """

    def __init__(self, averaging: FederatedAveraging, parameters: int) -> None:
        optimizer = averaging.server_optimizer
        linear = averaging.rule == WeightedMean() and isinstance(optimizer, FedAvgM)
        if not linear or averaging.privacy:
            raise ValueError(
                "contributions add up under WeightedMean() and FedAvgM(), without privacy; "
                f"received {averaging}. Leave out keep_contributions"
            )
        self._optimizer = optimizer
        self._zero = np.zeros(parameters)
        self._terms: dict[int, tuple[np.ndarray, ServerState]] = {}

    def add(self, updates: Sequence[ClientUpdate]) -> None:
        """Adds the parts of a round's update, and the momentum of other clients."""
        total = sum(each.examples for each in updates)
        parts = {
            each.client: each.examples / total * each.change.astype(np.float64)
            for each in updates
        }
        # Momentum moves the model by terms of clients that are not in this round, too.
        for client in {*parts, *self._terms}:
            weights, state = self._terms.get(
                client, (self._zero, self._optimizer.initial(self._zero))
            )
            part = parts.get(client, self._zero)
            self._terms[client] = self._optimizer.apply(weights, part, state)

    def pop(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns a client's part of the weights and of the momentum, and forgets it."""
        nothing = (self._zero, self._optimizer.initial(self._zero))
        weights, state = self._terms.pop(client, nothing)
        return weights, state.momentum

    def state(self) -> dict[str, np.ndarray]:
        """Returns the terms as arrays, for a checkpoint."""
        return {
            f"contributions/{client}": np.stack([weights, state.momentum])
            for client, (weights, state) in self._terms.items()
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues from a checkpoint."""
        self._terms = {
            int(name.split("/")[1]): (both[0], ServerState(both[1], self._zero))
            for name, both in state.items()
            if name.startswith("contributions/")
        }
