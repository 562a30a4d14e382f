"""Splits of examples among clients: by chance, by label or by amount.

Each function takes the labels of all examples, and returns an array of indices per client.
Every example goes to one client, and the same seed gives the same split.
"""

from collections.abc import Sequence

import numpy as np

Split = list[np.ndarray]
_ATTEMPTS = 1000


def iid(labels: Sequence[int] | np.ndarray, clients: int, seed: int = 0) -> Split:
    """Deals shuffled examples out in equal parts: the clients' data look alike.

    Args:
        labels: Class numbers, (examples,).
        clients: How many clients.
        seed: The shuffle's seed.

    Returns:
        int64 indices per client; the numbers of examples differ by 1 at most.

    Raises:
        ValueError: If there are fewer examples than clients.
    """
    labels = _checked(labels, clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    return [np.sort(each) for each in np.array_split(order, clients)]


def label_shards(
    labels: Sequence[int] | np.ndarray,
    clients: int,
    shards_per_client: int = 2,
    seed: int = 0,
) -> Split:
    """Sorts examples by label, cuts them into shards, and deals the shards out.

    With 2 shards each, most clients have examples of two classes alone. Source: McMahan et
    al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017, section 3.

    Raises:
        ValueError: If there are fewer examples than shards.
    """
    if shards_per_client < 1:
        raise ValueError(
            f"each client gets 1 or more shards; received {shards_per_client=}"
        )
    labels = _checked(labels, clients, parts=clients * shards_per_client)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    # The sort is stable, so the shuffle decides which examples of a label go together.
    order = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(order, clients * shards_per_client)
    dealt = rng.permutation(len(shards)).reshape(clients, shards_per_client)
    return [
        np.sort(np.concatenate([shards[shard] for shard in mine])) for mine in dealt
    ]


def dirichlet(
    labels: Sequence[int] | np.ndarray,
    clients: int,
    alpha: float,
    seed: int = 0,
    min_examples: int = 1,
) -> Split:
    """Draws how the examples of each class are divided from Dirichlet(alpha).

    A large alpha comes near to `iid`; at 0.1 most of a class is with a few clients. Shares
    are drawn again until each client has enough examples. Source: Yurochkin et al.,
    "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, and, with
    shares drawn per client instead, Hsu, Qi and Brown, arXiv 1909.06335.

    Args:
        labels: Class numbers, (examples,).
        clients: How many clients.
        alpha: Above 0.
        seed: The seed of all draws.
        min_examples: The fewest of any client; 0 lets clients be empty.

    Raises:
        ValueError: If alpha is not above 0, or if no draw gives each client enough.
    """
    labels = _checked(labels, clients, parts=clients * min_examples)
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha is above 0 and finite; received {alpha}")
    rng = np.random.default_rng(seed)
    by_class = [
        rng.permutation(np.flatnonzero(labels == each)) for each in np.unique(labels)
    ]
    for _ in range(_ATTEMPTS):
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for indices in by_class:
            shares = rng.dirichlet(np.full(clients, alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(indices)).astype(int)
            for part, mine in zip(parts, np.split(indices, cuts), strict=True):
                part.append(mine)
        split = [np.sort(np.concatenate(part)) for part in parts]
        if min(map(len, split)) >= min_examples:
            return split
    raise ValueError(
        f"none of {_ATTEMPTS} draws from Dirichlet({alpha:g}) gave each of {clients} "
        f"clients {min_examples} of {len(labels)} examples. Use a larger alpha, fewer "
        "clients, or min_examples=0"
    )


def unequal(
    labels: Sequence[int] | np.ndarray,
    clients: int,
    spread: float = 1.0,
    seed: int = 0,
) -> Split:
    """Deals shuffled examples out in log-normal amounts, at least 1 to each client.

    Args:
        labels: Class numbers, (examples,).
        clients: How many clients.
        spread: The standard deviation of the amounts' logarithm, 0 or more. At 1, the
            client at the 95th percentile has 5 times as many as the median one.
        seed: The seed of the amounts and the shuffle.

    Raises:
        ValueError: If there are fewer examples than clients, or the spread is negative.
    """
    labels = _checked(labels, clients)
    if not (np.isfinite(spread) and spread >= 0):
        raise ValueError(f"the spread is at least 0 and finite; received {spread}")
    rng = np.random.default_rng(seed)
    amounts = np.exp(spread * rng.standard_normal(clients))
    shared = len(labels) - clients  # Each client has one besides its share of these.
    ends = np.rint(np.cumsum(amounts / amounts.sum()) * shared).astype(int)
    cuts = ends[:-1] + np.arange(1, clients)
    order = rng.permutation(len(labels))
    return [np.sort(each) for each in np.split(order, cuts)]


def counts(split: Split, labels: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns how many examples of each class a client has: (clients, classes).

    Columns are the classes that occur, in ascending order.
    """
    classes, numbers = np.unique(np.asarray(labels), return_inverse=True)
    return np.array(
        [np.bincount(numbers[each], minlength=len(classes)) for each in split]
    )


def _checked(
    labels: Sequence[int] | np.ndarray, clients: int, parts: int | None = None
) -> np.ndarray:
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer):
        raise ValueError(f"clients is how many there are; received {clients!r}")
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            "labels must be class numbers, one per example; received "
            f"{labels.dtype} of shape {labels.shape}. np.argmax(labels, axis=1) makes "
            "them from one-hot rows"
        )
    parts = max(clients, parts or 0)
    if clients < 1 or len(labels) < parts:
        raise ValueError(
            "there are 1 or more clients, and an example for each part of the data; "
            f"received {len(labels)} examples for {clients} clients and {parts} parts. "
            "Use fewer clients"
        )
    return labels
