"""In which order a client takes its examples, in which batches."""

from typing import NamedTuple

import numpy as np

from tfdist.federated.averaging import FederatedAveraging

# Behind a seed, so that draws for different purposes differ.
_ORDER, _STREAM = 1, 2


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
    """Returns what a client's random layers start from, 0 to 2^31 - 1."""
    rng = np.random.default_rng((averaging.seed, round_index, client, _STREAM))
    return int(rng.integers(2**31))
