"""`AveragingStrategy`: a `Server` behind Flower's interface of strategies."""

import logging
import time
from collections.abc import Iterable

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from tfdist.research.federated.averaging import FederatedAveraging
from tfdist.research.federated.client_update import ClientUpdate
from tfdist.research.federated.flower.array_layout import ArrayLayout
from tfdist.research.federated.flower.client_numbers import ClientNumbers
from tfdist.research.federated.server import Server

_log = logging.getLogger("tfdist")
_POLL_SECONDS = 0.5


class AveragingStrategy(Strategy):
    """Chooses clients, and makes the next model of their replies, as `Server` does.

    Messages have Flower's own form: records `arrays` and `config` with `server-round` to a
    client, `arrays` (its weights) and `metrics` with `num-examples` from it. A client also
    answers one `query` with its number, `client` in the record `config`. The summands of a
    round are in the order of clients, so the same replies give the same bits.

    Replies that are errors, or do not come before Flower's timeout, or cannot be used are
    left out with a warning, and the round continues with the rest.

    Cost: as FedAvg, plus one message to each node that connects.

    Args:
        averaging: The algorithm. Its `deadline` is the `timeout` of `start`, which
            `server_app` sets.
        num_clients: All that belong to the federation: 0 to num_clients - 1.
        start_with: How many are connected before the first round; by default all. Later
            rounds begin with `averaging.min_clients`.
        connect_timeout: Seconds to wait for them.

    Attributes:
        server: The server; None before the first round.
        stopped: Set it, and rounds to come ask nobody and change nothing.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        averaging: FederatedAveraging,
        num_clients: int,
        *,
        start_with: int | None = None,
        connect_timeout: float = 600.0,
    ) -> None:
        self._start_with = num_clients if start_with is None else start_with
        if not 1 <= self._start_with <= num_clients:
            raise ValueError(
                "a federation has 1 or more clients, and starts with as many or fewer; "
                f"received {num_clients=}, {start_with=}"
            )
        self.averaging, self._num_clients = averaging, num_clients
        self._connect_timeout = connect_timeout
        self._numbers = ClientNumbers(num_clients)
        self._layout: ArrayLayout | None = None
        self._asked: dict[int, int] = {}
        self.server: Server | None = None
        self.stopped = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns a message to each client of the round.

        Raises:
            TimeoutError: If too few clients are connected.
        """
        if self.stopped:
            return []
        server = self._server_of(arrays)
        nodes = self._connected(grid, server)
        self._asked = {nodes[each]: each for each in server.select(nodes)}
        config["server-round"] = server.round_index + 1
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, MessageType.TRAIN) for node in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the next model, or None if the round does not count; and what came."""
        if self.stopped:
            return None, None
        assert self.server is not None
        assert self._layout is not None
        updates = []
        for reply in replies:
            try:
                update = self._update_of(reply)
                self.server.check(update)
                updates.append(update)
            except ValueError as error:
                _log.warning("round %d goes on: %s", server_round, error)
        if missing := len(self._asked) - len(updates):
            _log.warning(
                "round %d: %d of %d clients sent no update that can be used",
                server_round,
                missing,
                len(self._asked),
            )
        updates.sort(key=lambda each: each.client)
        counts = self.server.finish_round(updates)
        metrics = {
            "clients": len(self._asked),
            "answered": len(updates),
            "counts": int(counts),
        }
        arrays = self._layout.arrays(self.server.weights) if counts else None
        return None if arrays is None else record_of(arrays), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns no messages: the server evaluates, by Flower's `evaluate_fn`."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Returns None: no client was asked."""
        return None

    def summary(self) -> None:
        """Logs the algorithm."""
        _log.info("%s, %d clients", self.averaging, self._num_clients)

    def _server_of(self, arrays: ArrayRecord) -> Server:
        """The server, with the model that Flower's loop has."""
        values = arrays_of(arrays)
        if self.server is None or self._layout is None:
            self._layout = ArrayLayout(values)
            vector = self._layout.vector(values)
            self.server = Server(self.averaging, vector, self._num_clients)
        # A strategy around this one may have changed what it returned.
        self.server.weights = self._layout.vector(values)
        return self.server

    def _connected(self, grid: Grid, server: Server) -> dict[int, int]:
        """Waits for clients: the node of each."""
        needed = self.averaging.min_clients if server.round_index else self._start_with
        end = time.monotonic() + self._connect_timeout
        refused: set[int] = set()
        while True:
            nodes = set(grid.get_node_ids())
            refused |= self._ask(grid, set(self._numbers.unknown(nodes)) - refused)
            found = self._numbers.connected(nodes)
            if len(found) >= needed:
                return found
            if time.monotonic() > end:
                raise TimeoutError(
                    f"round {server.round_index + 1} begins with {needed} clients; after "
                    f"{self._connect_timeout:g} s, {len(found)} of {self._num_clients} are "
                    f"connected, and {len(refused)} nodes that are no clients. Start more, "
                    "or give a lower start_with or min_clients"
                )
            time.sleep(_POLL_SECONDS)

    def _ask(self, grid: Grid, nodes: set[int]) -> set[int]:
        """Asks nodes which clients they are, and returns those that did not say."""
        if not nodes:
            return set()
        messages = [
            Message(RecordDict(), node, MessageType.QUERY) for node in sorted(nodes)
        ]
        for reply in grid.send_and_receive(messages, timeout=self._connect_timeout):
            node = reply.metadata.src_node_id
            try:
                _check_reply(reply)
                number = reply.content.config_records["config"]["client"]
                self._numbers.add(node, int(number))
            except (KeyError, TypeError, ValueError) as error:
                _log.warning("node %d is asked for nothing: %s", node, error)
        return set(self._numbers.unknown(nodes))

    def _update_of(self, reply: Message) -> ClientUpdate:
        assert self.server is not None
        assert self._layout is not None
        _check_reply(reply)
        client = self._asked[reply.metadata.src_node_id]
        try:
            arrays = arrays_of(reply.content.array_records["arrays"])
            examples = int(reply.content.metric_records["metrics"]["num-examples"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"client {client} sends records `arrays` and `metrics` with "
                f"`num-examples`; received {sorted(reply.content)}"
            ) from error
        change = self._layout.vector(arrays) - self.server.weights
        return ClientUpdate(client, change, examples)


def arrays_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Returns the arrays of a record, by name."""
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    """Returns arrays as a record."""
    return ArrayRecord({name: Array(each) for name, each in arrays.items()})


def _check_reply(reply: Message) -> None:
    if reply.has_error():
        raise ValueError(
            f"node {reply.metadata.src_node_id} failed: {reply.error.reason}"
        )
