"""How many workers a round does not wait for, from the times of their steps. Pure."""

import math
from collections.abc import Sequence

import numpy as np


def backup_workers_for(
    seconds: Sequence[Sequence[float]], noise_scale: float = math.inf
) -> int:
    r"""Chooses the number of backup workers by the times of past steps.

    A round that waits for N of n workers takes as long as the N-th fastest step,
    :math:`T_{(N)}`. The choice maximises the gain of a round per second,

    .. math:: G(N) / E[T_{(N)}],

    as C. Xu et al., "Dynamic backup workers for parallel machine learning"
    (arXiv:2004.14696) do in each iteration. They estimate the gain from the
    norm and the variance of the gradients. Here it is
    :math:`G(N) = 1 / (1 + \phi / N)` up to a factor, by S. McCandlish et al., "An
    Empirical Model of Large-Batch Training" (arXiv:1812.06162), where
    :math:`\phi` is the noise scale in batches of a worker. By default it is infinite, so
    that the gain is N: the rule maximises gradients that count per second, and prefers
    fewer backups than a smaller noise scale would.

    The expectation is over independent times of the workers, each drawn from what was
    measured of that worker. It is exact:
    :math:`P(T_{(N)} \le t)` is the probability that at least N of n workers take at most t,
    a Poisson binomial distribution.

    Of equally good numbers, it returns the least.

    >>> backup_workers_for([[1.0], [1.0], [1.0], [1.0], [10.0]])
    1
    >>> backup_workers_for([[1.0], [1.1], [0.9]])
    0

    Args:
        seconds: The times of past steps of each worker. A worker without any is taken for
            one that will not come.
        noise_scale: The noise scale of the gradient, in batches of a worker.

    Returns:
        A number below that of the workers; 0 if nothing was measured.
    """
    times = expected_times(seconds)
    gains = [
        (n if math.isinf(noise_scale) else 1 / (1 + noise_scale / n)) / time
        for n, time in enumerate(times, start=1)
    ]
    if not gains or max(gains) == 0:
        return 0
    best = max(gains)
    # Rounding must not cost a gradient.
    enough = max(n for n, g in enumerate(gains, 1) if g >= best * (1 - 1e-9))
    return len(times) - enough


def expected_times(seconds: Sequence[Sequence[float]]) -> list[float]:
    """Returns how long a round takes that waits for 1, 2, ... n workers, in seconds.

    Args:
        seconds: The times of past steps of each worker.
    """
    workers = [np.sort(np.asarray(each, float)) for each in seconds]
    present = [each for each in workers if len(each)]
    if not present:
        return [math.inf] * len(workers)
    ends = np.unique(np.concatenate(present))
    # How probably exactly k workers have finished by each of these times: [times, k].
    finished = np.ones([len(ends), 1])
    for each in present:
        by_then = np.searchsorted(each, ends, side="right")[:, None] / len(each)
        finished = np.pad(finished * (1 - by_then), [(0, 0), (0, 1)]) + np.pad(
            finished * by_then, [(0, 0), (1, 0)]
        )
    at_least = np.cumsum(finished[:, ::-1], axis=1)[:, ::-1]
    just_then = np.diff(at_least, axis=0, prepend=0.0)
    times = [float(ends @ just_then[:, n]) for n in range(1, len(present) + 1)]
    return times + [math.inf] * (len(workers) - len(present))
