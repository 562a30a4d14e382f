"""Policies of local updates: who mixes models with whom, and with which weights.

Each participant takes steps of its own; then models are mixed. `Mean` has everyone end
with the mean of all models, `Gossip` has each participant average with its neighbours in
a graph. These decisions are pure: numpy is all they need.
"""

from tfdist.local_update.mixing.graphs import (
    complete,
    exponential,
    from_edges,
    from_matrix,
    from_networkx,
    one_peer_exponential,
    random_regular,
    ring,
    star,
    torus,
)
from tfdist.local_update.mixing.mixing import Gossip, Mean, Mixing
from tfdist.local_update.mixing.topology import Topology

__all__ = [
    "Gossip",
    "Mean",
    "Mixing",
    "Topology",
    "complete",
    "exponential",
    "from_edges",
    "from_matrix",
    "from_networkx",
    "one_peer_exponential",
    "random_regular",
    "ring",
    "star",
    "torus",
]
