"""A round of which the server sees the sum alone. Pure."""

import logging
from collections.abc import Collection, Sequence

import numpy as np

from tfdist.federated.aggregation import NormClipping, clipped
from tfdist.federated.averaging import FederatedAveraging
from tfdist.federated.client_update import ClientUpdate
from tfdist.federated.secure_mean import secure_sum
from tfdist.federated.server import Server

_log = logging.getLogger("tfdist")


def finish_secure_round(
    server: Server,
    updates: Sequence[ClientUpdate],
    vanished: Collection[int],
) -> tuple[bool, int]:
    """Makes the next model of the sum of updates, by the whole protocol.

    A client sends its update times its share of the most examples that a client has, and
    the share behind it: the quotient of the sums is the weighted mean.

    Args:
        server: Whose algorithm has `secure`.
        updates: What clients computed.
        vanished: Clients that have shared their keys, and send no update.

    Returns:
        Whether the round counts, and how many bytes all clients sent.
    """
    averaging = server.averaging
    assert averaging.secure is not None
    limit = averaging.secure.limit
    most = max((each.examples for each in updates), default=1)
    vectors = {}
    for update in updates:
        vector = _vector(averaging, update, most)
        if (np.abs(vector) <= limit).all():
            vectors[update.client] = vector
            continue
        _log.warning(
            "client %d is left out: its update exceeds limit=%g of secure aggregation. Raise "
            "the limit, or clip updates: NormClipping(limit)",
            update.client,
            limit,
        )
    gone = {*vanished, *(each.client for each in updates)} - set(vectors)
    try:
        averaging.check_clients(len(vectors))
        total, sent = secure_sum(averaging.secure, vectors, gone)
    except ValueError as error:
        server.skip_round(str(error))
        return False, 0
    if averaging.privacy is not None:
        mean = server.noisy(total[:-1])
    else:
        mean = total[:-1] * limit / total[-1]
    server.apply(mean.astype(server.weights.dtype))
    return True, sent


def _vector(
    averaging: FederatedAveraging, update: ClientUpdate, most_examples: int
) -> np.ndarray:
    assert averaging.secure is not None
    change, share = update.change.astype(np.float64), update.examples / most_examples
    if isinstance(averaging.rule, NormClipping):
        change = clipped(change, averaging.rule.max_norm)
    if averaging.privacy is not None:
        share = 1.0
        if averaging.privacy.clip is not None:
            change = clipped(change, averaging.privacy.clip)
    return np.append(share * change, share * averaging.secure.limit)
