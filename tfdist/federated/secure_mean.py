"""The mean of a round by secure aggregation, with all parties in one process. Pure.

It runs the protocol of `secure_aggregation` from keys to the sum, for simulations: what
the server computes is what it would compute if the clients were elsewhere.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from tfdist.federated.fixed_point import FixedPoint
from tfdist.federated.secure_aggregation import (
    SecureClient,
    default_threshold,
    unmasked_sum,
)


@dataclasses.dataclass(frozen=True)
class SecureAggregation:
    """Has the server see the sum of a round's updates, and none of them.

    Args:
        limit: The largest absolute value of an update's elements, above 0. An update that
            exceeds it is an error of its client, and is left out.
        threshold: How many clients unmask a sum, 2 or more; by default more than two
            thirds of a round. A round of which fewer are left changes nothing.

    Raises:
        ValueError: If a number is out of range.
    """

    limit: float = 1.0
    threshold: int | None = None

    def __post_init__(self) -> None:
        FixedPoint(self.limit, 1)  # Checks it.
        if self.threshold is not None and self.threshold < 2:
            raise ValueError(
                f"a threshold is 2 or more, or one client is its own sum; received "
                f"{self.threshold}"
            )

    def threshold_of(self, clients: int) -> int:
        """The threshold of a round in which so many clients begin."""
        return max(2, self.threshold or default_threshold(clients))


class SecureSum(NamedTuple):
    """What the server learns, and what clients sent for it.

    Attributes:
        total: The sum of the survivors' vectors: float64.
        sent_bytes: Of all clients together: sealed shares and masked vectors.
    """

    total: np.ndarray
    sent_bytes: int


def secure_sum(
    secure: SecureAggregation,
    vectors: Mapping[int, np.ndarray],
    vanished: Collection[int],
) -> SecureSum:
    """Returns the sum of the vectors of those that answered, by the whole protocol.

    Args:
        secure: The limit and the threshold.
        vectors: By client: floats within the limit, (length,).
        vanished: Clients that have shared their keys, and send no vector.

    Raises:
        ValueError: If fewer clients than the threshold are left.
    """
    everyone = sorted({*vectors, *vanished})
    threshold = secure.threshold_of(len(everyone))
    if len(vectors) < threshold:
        raise ValueError(
            f"a sum needs vectors of {threshold} clients, its threshold; received "
            f"{len(vectors)}"
        )
    point = FixedPoint(secure.limit, len(everyone))
    clients = {each: SecureClient(each, threshold) for each in everyone}
    keys = {each: client.public_keys() for each, client in clients.items()}
    sealed = {each: client.shares(keys) for each, client in clients.items()}
    masked = {}
    for each, vector in vectors.items():
        mine = {other: sealed[other][each] for other in everyone if other != each}
        masked[each] = clients[each].masked(point.encode(vector), mine)
    reveals = {each: clients[each].reveal(set(masked)) for each in masked}
    total = unmasked_sum(masked, reveals, keys, threshold)
    shares = sum(len(share) for mine in sealed.values() for share in mine.values())
    vectors_bytes = sum(vector.nbytes for vector in masked.values())
    return SecureSum(point.decode(total), shares + vectors_bytes)
