"""Size of a simulation, and an estimate of how long it takes."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tfdist.consistency.combinations import is_free
from tfdist.consistency.policy import Consistency, for_workers

MOST_WORKERS = 100_000
"""The most workers: two minutes if none of them waits."""

_FEWEST_STEPS, _STEPS_PER_WORKER = 2000, 8
# More workers than this only wait under a bound, and each takes its time to simulate.
_MOST_BOUNDED = 32
# On one core of 2020 or so. A policy that lets steps wait looks at all workers.
_PER_STEP, _PER_STEP_AND_WORKER = 1.4e-4, 7e-7
_WORTH_SAYING = 10.0


@dataclass(frozen=True)
class Size:
    """The simulated workers and steps, and an estimate of the seconds they take.

    Under a bound, the workers that are not simulated only wait.
    """

    workers: int
    steps: int
    seconds: float


def size_of(policy: Consistency, workers: int, steps: int = 0) -> Size:
    """Returns the size: by default, 8 steps per worker, and 2,000 or more.

    >>> from tfdist import Asynchronous, BoundedStaleness
    >>> size_of(Asynchronous(), 1000)
    Size(workers=1000, steps=8000, seconds=1.1)
    >>> size_of(BoundedStaleness(10), 1000).workers
    40
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(
            f"a simulation has from 1 to {MOST_WORKERS:,} workers; received {workers!r}"
        )
    resolved = for_workers(policy, workers)
    bound = getattr(resolved, "max_staleness", workers)
    workers = int(min(workers, max(_MOST_BOUNDED, 4 * bound)))
    if 0 < steps < 2 * workers:
        raise ValueError(
            f"{steps} steps are too few for {workers} workers, whose first ones only fill "
            f"the queues: simulate {2 * workers} or more, or 0 for as many as it takes"
        )
    steps = steps or max(_STEPS_PER_WORKER * workers, _FEWEST_STEPS)
    each = _PER_STEP + (0 if is_free(resolved) else _PER_STEP_AND_WORKER * workers)
    return Size(workers, steps, round(each * steps, 1))


def announce(sizes: Iterable[Size]) -> None:
    """Prints how long the simulations of a command take, if that is long."""
    seconds = sum(each.seconds for each in sizes)
    if seconds >= _WORTH_SAYING:
        print(f"simulating takes about {seconds:,.0f} s", file=sys.stderr)
