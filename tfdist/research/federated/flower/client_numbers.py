"""Assignment of Flower's nodes to clients.

Flower draws a node's id anew when it starts again. The algorithm draws clients and the
order of their examples by number, so a node tells the server which client it is.
"""

import logging
from collections.abc import Collection

_log = logging.getLogger("tfdist")


class ClientNumbers:
    """The clients that nodes have said they are."""

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self._number_of: dict[int, int] = {}

    def unknown(self, nodes: Collection[int]) -> list[int]:
        """Returns the nodes that have not said who they are."""
        return sorted(set(nodes) - set(self._number_of))

    def add(self, node: int, client: int) -> None:
        """Notes which client a node is, of those that belong to the federation."""
        if not 0 <= client < self._num_clients:
            raise ValueError(
                f"clients are 0 to {self._num_clients - 1}; node {node} says that it is "
                f"{client}. Start it with another partition-id"
            )
        if client in self._number_of.values():
            _log.warning(
                "another node says that it is client %d, and is asked from now on: a client "
                "that was started again, or two with the same partition-id",
                client,
            )
        self._number_of[node] = client

    def connected(self, nodes: Collection[int]) -> dict[int, int]:
        """Returns the node of each client that is there; of two, the one that came last."""
        return {
            client: node for node, client in self._number_of.items() if node in nodes
        }
