"""The server of a federation: it chooses clients, and makes the next model.

It knows nothing of how models and updates travel: a simulation calls it, and so can a
program whose clients are real.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tfdist.research.federated.averaging import FederatedAveraging
from tfdist.research.federated.client_update import ClientUpdate
from tfdist.research.federated.contributions import Contributions
from tfdist.research.federated.server_optimizers import ServerState

_log = logging.getLogger("tfdist")
_NOISE = 4  # Behind a seed, so that draws for different purposes differ.


class Server:
    """The model of a federation, and its updates by rounds.

    Args:
        averaging: The algorithm.
        weights: The model before the first round: floats, (parameters,).
        num_clients: All that belong to the federation: 0 to num_clients - 1.
        keep_contributions: Whether to keep what each client has added to the model, so
            that `leave` can take it out. Costs a vector per client (two with momentum).

    Attributes:
        weights: The model now.
        round_index: How many rounds there were.
        left: The clients that have left.

    Raises:
        ValueError: If the weights are no vector of floats, there are no clients, or
            contributions do not add up under this algorithm.
    """

    def __init__(
        self,
        averaging: FederatedAveraging,
        weights: np.ndarray,
        num_clients: int,
        keep_contributions: bool = False,
    ) -> None:
        if weights.ndim != 1 or not np.issubdtype(weights.dtype, np.floating):
            raise ValueError(
                "weights are floats of shape (parameters,); received "
                f"{weights.dtype} of shape {weights.shape}"
            )
        if num_clients < 1:
            raise ValueError(
                f"a federation has 1 or more clients; received {num_clients}"
            )
        averaging.check_round(num_clients)
        self.averaging = averaging
        self.num_clients = num_clients
        self.weights = weights.copy()
        self.round_index = 0
        self.left: set[int] = set()
        self._asked: frozenset[int] | None = None  # In this round, once somebody was.
        self._optimizer_state = averaging.server_optimizer.initial(self.weights)
        self._contributions = (
            Contributions(averaging, len(weights)) if keep_contributions else None
        )

    def select(self, available: Collection[int] | None = None) -> tuple[int, ...]:
        """Returns the clients of the next round, of those available that have not left."""
        if available is None:
            available = range(self.num_clients)
        there = sorted(set(available) - self.left)
        sampler = self.averaging.sampler
        asked = sampler.clients(self.round_index, self.num_clients, there)
        self._asked = frozenset(asked)
        return asked

    def check(self, update: ClientUpdate) -> None:
        """Checks that an update can be used.

        Raises:
            ValueError: If its client does not belong here, has another model or no
                examples, or sends numbers that are not finite.
        """
        client, change, examples = update
        if not 0 <= client < self.num_clients or client in self.left:
            raise ValueError(
                f"clients are 0 to {self.num_clients - 1}, without those that left: "
                f"{sorted(self.left)}; received an update of client {client}"
            )
        if change.shape != self.weights.shape or change.dtype != self.weights.dtype:
            raise ValueError(
                f"client {client} has another model: updates are {self.weights.dtype} of "
                f"shape {self.weights.shape}; received {change.dtype} of shape "
                f"{change.shape}"
            )
        if not examples > 0:
            raise ValueError(
                f"client {client} has no examples: an update comes from 1 or more; "
                f"received {examples}"
            )
        if not np.isfinite(change).all():
            raise ValueError(
                f"client {client} must send finite numbers; received others: its training has "
                "diverged. Lower the learning rate, or clip its gradients"
            )

    def finish_round(self, updates: Sequence[ClientUpdate]) -> bool:
        """Makes the next model of the updates that have come.

        Returns:
            Whether the round counts. With too few updates, the model stays as it is.

        Raises:
            ValueError: If an update cannot be used, see `check`; or if one is of a client
                that was not selected, or that has sent another.
        """
        # All are checked before anything changes.
        for update in updates:
            self.check(update)
        self._check_senders([each.client for each in updates])
        try:
            self.averaging.check_clients(len(updates))
        except ValueError as error:
            _log.warning("round %d changes nothing: %s", self.round_index + 1, error)
            self._end_round()
            return False
        mean = self._aggregate(updates)
        if self._contributions is not None:
            self._contributions.add(updates)
        weights, self._optimizer_state = self.averaging.server_optimizer.apply(
            self.weights, mean, self._optimizer_state
        )
        self.weights = weights.astype(self.weights.dtype)
        self._end_round()
        return True

    def _check_senders(self, clients: Sequence[int]) -> None:
        twice = sorted(each for each, n in Counter(clients).items() if n > 1)
        if twice:
            raise ValueError(
                f"each client sends one update in a round; received several of {twice}"
            )
        # Without `select`, as where a program chooses clients, anybody may answer.
        unasked = sorted(set(clients) - (self._asked or set(clients)))
        if unasked:
            raise ValueError(
                f"round {self.round_index + 1} has asked clients "
                f"{sorted(self._asked or ())}; received updates of {unasked}"
            )

    def _end_round(self) -> None:
        self.round_index += 1
        self._asked = None

    def leave(self, client: int, take_out: bool = False) -> None:
        """Excludes a client from rounds to come.

        Args:
            client: Its number.
            take_out: Whether to subtract its contribution to the model. Its effects on
                what others learned from earlier models stay: this is no retraining.

        Raises:
            ValueError: If there is no such client, or contributions are not kept.
        """
        if not 0 <= client < self.num_clients:
            raise ValueError(
                f"clients are 0 to {self.num_clients - 1}; received {client}"
            )
        if take_out:
            if self._contributions is None:
                raise ValueError(
                    "what a client has added is taken out where the server keeps it: "
                    "give keep_contributions=True before the first round"
                )
            added, momentum = self._contributions.pop(client)
            self.weights = (self.weights - added).astype(self.weights.dtype)
            state = self._optimizer_state
            self._optimizer_state = state._replace(momentum=state.momentum - momentum)
        self.left.add(client)

    def state(self) -> dict[str, np.ndarray]:
        """Returns all that a server needs to continue after it was started again."""
        state = {
            "weights": self.weights,
            "round_index": np.array(self.round_index),
            "left": np.array(sorted(self.left), np.int64),
            **{f"optimizer/{k}": v for k, v in self._optimizer_state._asdict().items()},
        }
        if self._contributions is not None:
            state |= self._contributions.state()
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from a state.

        Raises:
            ValueError: If it is of another model.
        """
        if state["weights"].shape != self.weights.shape:
            raise ValueError(
                f"the model has {len(self.weights)} parameters; received a state with "
                f"{len(state['weights'])}"
            )
        self.weights = state["weights"]
        self.round_index = int(state["round_index"])
        self.left = set(state["left"].tolist())
        self._optimizer_state = ServerState(
            *(state[f"optimizer/{name}"] for name in ServerState._fields)
        )
        if self._contributions is not None:
            self._contributions.restore(state)

    def _aggregate(self, updates: Sequence[ClientUpdate]) -> np.ndarray:
        changes = np.stack([each.change for each in updates] or [self.weights[:0]])
        privacy = self.averaging.privacy
        if privacy is None:
            examples = np.array([each.examples for each in updates], np.float64)
            return self.averaging.rule.aggregate(changes, examples)
        if not updates:
            changes = np.zeros((0, len(self.weights)), self.weights.dtype)
        expected = self.averaging.expected_clients(self.num_clients)
        rng = np.random.default_rng((self.averaging.seed, self.round_index, _NOISE))
        return privacy.mean(changes, expected, rng)
