"""Graphs that people gossip on.

Weights are those of Metropolis and Hastings, which are uniform in a regular graph. What
each costs and gains, for n participants: Nedić, Olshevsky and Rabbat, "Network topology and
communication-computation tradeoffs in decentralized optimization", 2018, and, for
exponential graphs, Ying et al., "Exponential Graph is Provably Efficient for Decentralized
Deep Training", NeurIPS 2021.
"""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfdist.local_update.mixing.doubly_stochastic import metropolis_hastings
from tfdist.local_update.mixing.topology import Topology


def ring(participants: int) -> Topology:
    """Returns a ring: 2 neighbours each, and a spectral gap of order 1/n².

    Raises:
        ValueError: If there are no participants.
    """
    _check(participants)
    edges = [(one, (one + 1) % participants) for one in range(participants)]
    return from_edges(participants, edges, name="ring")


def torus(participants: int, rows: int | None = None) -> Topology:
    """Returns a grid whose borders meet: 4 neighbours each, a gap of order 1/n.

    Args:
        participants: Their number.
        rows: A divisor of it, 2 or more; by default the largest up to its root.

    Raises:
        ValueError: If they do not fill a grid of 2 or more rows and columns.
    """
    _check(participants)
    divisors = [n for n in range(2, participants // 2 + 1) if participants % n == 0]
    if not divisors or (rows is not None and rows not in divisors):
        raise ValueError(
            "a torus has 2 or more full rows and columns; received "
            f"{participants} participants"
            + ("" if rows is None else f" in {rows} rows")
            + (f". Rows can be one of {divisors}" if divisors else "")
        )
    rows = rows or max(n for n in divisors if n * n <= participants)
    columns = participants // rows
    number = np.arange(participants).reshape(rows, columns)
    edges = [
        (int(one), int(other))
        for axis in (0, 1)
        for one, other in zip(number.flat, np.roll(number, -1, axis).flat, strict=True)
    ]
    return from_edges(participants, edges, name="torus")


def complete(participants: int) -> Topology:
    """Returns the graph of all edges: n - 1 neighbours each, and the mean in one round.

    Raises:
        ValueError: If there are no participants.
    """
    _check(participants)
    edges = itertools.combinations(range(participants), 2)
    return from_edges(participants, edges, name="complete")


def star(participants: int) -> Topology:
    """Returns a star around participant 0, which has n - 1 neighbours: a gap of 1/n.

    Raises:
        ValueError: If there are no participants.
    """
    _check(participants)
    edges = [(0, other) for other in range(1, participants)]
    return from_edges(participants, edges, name="star")


def exponential(participants: int) -> Topology:
    """Returns the static exponential graph: i receives from i + 1, i + 2, i + 4, ...

    Log2(n) models, rounded up, in and out of each, one way. For even n the gap is
    2 / (1 + log2(n)), rounded alike (Ying et al. 2021, proposition 1).

    Raises:
        ValueError: If there are no participants.
    """
    _check(participants)
    shifts = _powers_of_two(participants)
    weights = np.mean([_shift(participants, by) for by in (0, *shifts)], axis=0)
    return Topology("exponential", (weights,))


def one_peer_exponential(participants: int) -> Topology:
    """Returns the exponential graph with one of its edges per round, in turn.

    In round k, i averages with i + 2^k alone: one model in and one out. If n is a power
    of 2, log2(n) rounds give the mean exactly (Ying et al. 2021, lemma 1).

    Raises:
        ValueError: If there are no participants.
    """
    _check(participants)
    # One participant has no peer, but a topology needs a matrix.
    shifts = _powers_of_two(participants) or [0]
    own = np.eye(participants)
    return Topology(
        "one-peer exponential",
        tuple((own + _shift(participants, by)) / 2 for by in shifts),
    )


def random_regular(participants: int, degree: int = 4, seed: int = 0) -> Topology:
    """Returns a random graph of equal degrees: a gap that hardly depends on n.

    Args:
        participants: Their number, above the degree.
        degree: The neighbours of each; this times the participants is even.
        seed: The same seed gives the same graph, which all participants must have.

    Raises:
        ImportError: If networkx is not installed.
        ValueError: If no such graph exists, or the one drawn is not connected.
    """
    _check(participants)
    try:
        import networkx
    except ImportError as error:
        raise ImportError(
            "a random regular graph needs networkx, which tfdist does not install by "
            "itself: pip install 'networkx>=3' (the extra `networkx`)"
        ) from error
    try:
        graph = networkx.random_regular_graph(degree, participants, seed=seed)
    except networkx.NetworkXError as error:
        raise ValueError(
            "a regular graph has a degree below its number of participants, and an even "
            f"product of both; received {degree=}, {participants=}"
        ) from error
    return from_edges(participants, graph.edges, name="random regular")


def from_networkx(graph: Any) -> Topology:
    """Returns the topology of an undirected graph of networkx.

    Args:
        graph: A `networkx.Graph` whose nodes are 0 to n - 1. Its edges' attributes are not
            read: weights are those of Metropolis and Hastings.

    Raises:
        ValueError: If it is directed or not connected, or has other nodes.
    """
    nodes = set(graph.nodes)
    if graph.is_directed():
        raise ValueError(
            "received a directed graph, for which no simple weights keep the mean: give "
            "an undirected one, or your weights to tfdist.mixing.from_matrix"
        )
    if not nodes or nodes != set(range(len(nodes))):
        raise ValueError(
            f"the nodes are the participants, 0 to {len(nodes) - 1}; received "
            f"{list(graph.nodes)[:8]}. networkx.convert_node_labels_to_integers(graph) "
            "numbers them"
        )
    return from_edges(len(nodes), graph.edges(), name=graph.name or "graph")


def from_edges(
    participants: int, edges: Iterable[tuple[int, int]], name: str = "graph"
) -> Topology:
    """Returns the topology of an undirected graph.

    Args:
        participants: Their number.
        edges: Pairs of participants; one from a participant to itself changes nothing.
        name: The graph's common name.

    Raises:
        ValueError: If the graph is not connected, or an edge leads elsewhere.
    """
    _check(participants)
    edges = [(one, other) for one, other in edges]
    for edge in edges:
        if not set(edge) <= set(range(participants)):
            raise ValueError(
                f"an edge joins two of 0 to {participants - 1}; received {edge}"
            )
    return Topology(name, (metropolis_hastings(participants, edges),))


def from_matrix(*matrices: Any, name: str = "matrix") -> Topology:
    """Returns the topology of weights of your own.

    Args:
        *matrices: Doubly stochastic, (n, n) each: one for all rounds, or one per round,
            and then the first again. Row i has the weights with which i averages.
        name: The graph's common name.

    Raises:
        ValueError: If a matrix is not doubly stochastic, or models would never agree.
    """
    return Topology(name, matrices)


def _check(participants: int) -> None:
    if participants < 1:
        raise ValueError(
            f"a topology has 1 or more participants; received {participants}"
        )


def _powers_of_two(below: int) -> list[int]:
    return [2**power for power in range(math.ceil(math.log2(below)))]


def _shift(participants: int, by: int) -> np.ndarray:
    """The permutation that sends i + by to i."""
    return np.roll(np.eye(participants), by, axis=1)
