"""Local search: better assignments near the ones that are known."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from tfdist.research.model_parallel.step import SimulatedStep, simulate
from tfdist.research.model_parallel.work import Assignment, Work

EFFORT = 600_000
"""The most simulated tasks of a search: a few seconds."""

Move = dict[int, int]
"""Units, each with the device that it would be moved to."""

# So many kicks in a row without a gain end the search.
_FRUITLESS = 40
_SHIFTS = (1, 2, 4, 8, 16, 32)
# Larger graphs have too many pairs to swap each.
_SWAPPED = 40
_LESS = 1 - 1e-9


def improve(
    work: Work, starts: Iterable[Assignment], *, effort: int = EFFORT, seed: int = 0
) -> Assignment:
    """Returns the fastest assignment that is found near some that fit.

    Descends from each start by moves of what is on the critical path (see `moves`),
    then from the best one after random changes of it, as long as the effort lasts
    (simulated tasks) or until 40 changes in a row have brought nothing. All assignments
    that it tries fit.

    Cost: each try simulates a step, or as much of it as the best one takes.
    """
    return _Search(work, effort, seed).run(starts)


def moves(work: Work, assignment: Sequence[int], run: SimulatedStep) -> Iterator[Move]:
    """Yields changes that could make a run faster, the most promising first.

    Of what is on the critical path: all that it computes on a device without leaving it;
    either end of a message; chains without branches; single units; and pairs that change
    places. Of the rest, what is on either side of a cut.
    """
    path = _path_of(work, run)
    devices = range(len(work.devices))
    chains = work.chains
    for device, part in groupby(path, key=assignment.__getitem__):
        units = list(part)
        yield from (dict.fromkeys(units, other) for other in devices if other != device)
    for code in run.critical_path():
        if code < -1:
            tensor = work.tensors[run.messages[-2 - code].tensor]
            ends = {work.unit_of[v] for v in (tensor.source, *tensor.targets)}
            for u in ends:
                yield from (
                    dict.fromkeys(group, assignment[other])
                    for other in ends
                    if assignment[other] != assignment[u]
                    for group in ([u], chains[u])
                )
    for chain in dict.fromkeys(tuple(chains[u]) for u in path):
        yield from (dict.fromkeys(chain, other) for other in devices)
    yield from _shifts(assignment)
    for u in dict.fromkeys(path):
        yield from ({u: other} for other in devices if other != assignment[u])
    if len(assignment) <= _SWAPPED:
        for u in dict.fromkeys(path):
            for v, device in enumerate(assignment):
                if device != assignment[u]:
                    yield {u: device, v: assignment[u]}


def _path_of(work: Work, run: SimulatedStep) -> list[int]:
    """Returns the units on the critical path, in its order."""
    n = work.num_nodes
    return [work.unit_of[code % n] for code in run.critical_path() if code >= 0]


def _shifts(assignment: Sequence[int]) -> Iterator[Move]:
    """Yields shifts of each cut of the order by some units, either way."""
    cuts = [
        at for at in range(1, len(assignment)) if assignment[at] != assignment[at - 1]
    ]
    for length in _SHIFTS:
        for at in cuts:
            before, after = assignment[at - 1], assignment[at]
            right = range(at, min(at + length, len(assignment)))
            left = range(max(at - length, 0), at)
            yield {u: before for u in right if assignment[u] == after}
            yield {u: after for u in left if assignment[u] == before}


class _Search:
    def __init__(self, work: Work, effort: int, seed: int) -> None:
        self._work = work
        self._left = effort
        self._random = random.Random(seed)
        self._tried: set[Assignment] = set()

    def run(self, starts: Iterable[Assignment]) -> Assignment:
        known = [(simulate(self._work, each), each) for each in dict.fromkeys(starts)]
        known.sort(key=lambda each: each[0].seconds)
        best_run, best = known[0]
        # Half of the effort for the best start, a quarter for the others together.
        shares = [self._left // 2] + [self._left // 4 // len(known)] * len(known)
        for (run, start), share in zip(known, shares, strict=False):
            run, found = self._descend(run, start, share)
            if run.seconds < best_run.seconds:
                best_run, best = run, found
        fruitless = 0
        while self._left > 0 and fruitless < _FRUITLESS:
            # No assignment is faster than the bound: nothing is left to find.
            if best_run.seconds <= self._work.bound * (1 + 1e-9):
                break
            run, found = self._kick(best)
            fruitless += 1
            if run.seconds < _LESS * best_run.seconds:
                best_run, best, fruitless = run, found, 0
        return best

    def _kick(self, best: Assignment) -> tuple[SimulatedStep, Assignment]:
        """Moves a few chains or units of the best assignment at random, and descends."""
        kicked = list(best)
        for _ in range(self._random.randint(1, 3)):
            unit = self._random.randrange(len(kicked))
            device = self._random.randrange(len(self._work.devices))
            whole = self._random.random() < 0.5
            for each in self._work.chains[unit] if whole else [unit]:
                kicked[each] = device
        found = tuple(kicked)
        # Then only what is left untried near the best is tried.
        if not self._work.fits(found):
            found = best
        return self._descend(simulate(self._work, found), found, self._left)

    def _descend(
        self, run: SimulatedStep, assignment: Assignment, effort: int
    ) -> tuple[SimulatedStep, Assignment]:
        """Takes the first move that helps, until none does or the effort is spent."""
        end = self._left - effort
        self._left -= run.ended
        while self._left > end:
            better = self._first_better(run, assignment, end)
            if better is None:
                break
            run, assignment = better
        return run, assignment

    def _first_better(
        self, run: SimulatedStep, assignment: Assignment, end: int
    ) -> tuple[SimulatedStep, Assignment] | None:
        for move in moves(self._work, assignment, run):
            changed = list(assignment)
            for unit, device in move.items():
                changed[unit] = device
            candidate = tuple(changed)
            if candidate in self._tried or not self._work.fits(candidate):
                continue
            self._tried.add(candidate)
            # Most candidates are slower, and given up before their step has ended.
            tried = simulate(self._work, candidate, limit=_LESS * run.seconds)
            self._left -= tried.ended + self._work.num_nodes
            if tried.seconds < run.seconds:
                return tried, candidate
            if self._left <= end:
                return None
        return None
