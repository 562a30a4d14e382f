"""Updates that clients send to the server."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfdist.research.federated.aggregation import WeightedMean


class ClientUpdate(NamedTuple):
    """The update that a client sends after its local steps.

    Attributes:
        client: Its number.
        change: Its weights minus those it was sent: floats, (parameters,).
        examples: How many it has.
    """

    client: int
    change: np.ndarray
    examples: int


def merged(updates: Sequence[ClientUpdate]) -> ClientUpdate:
    """Returns the weighted mean of updates as one, with the examples of all.

    The weighted mean of such means is that of all updates, to rounding.
    """
    examples = np.array([each.examples for each in updates], np.float64)
    changes = np.stack([each.change for each in updates])
    mean = WeightedMean().aggregate(changes, examples)
    return ClientUpdate(updates[0].client, mean, int(examples.sum()))
