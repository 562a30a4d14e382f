"""Rounds of local steps, after which fragments of the models are mixed.

A mix follows every H local steps, fragment by fragment, and the end of training.
"""

from collections.abc import Sequence

import numpy as np


class MixSchedule:
    """Counts local steps, and says which fragment of the model to mix after each.

    A round has H steps. With F fragments, number f is mixed after the first (f+1)H/F of
    them, rounded down: each once per round, H steps after its last time, and one at a
    time. The last one is mixed where the round ends, as the whole model is where it is
    one fragment. `local_steps` is H, and `fragments` F, at most H.

    Source: Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv
    2501.18512: fragment p is sent every H steps, from an offset of its own. Equal distances
    between offsets give each mix as much time as any other.

    >>> rounds = MixSchedule(4, fragments=2)
    >>> [rounds.step() for _ in range(7)]
    [None, 0, None, 1, None, 0, None]
    >>> rounds.close(), rounds.close()
    ([0, 1], [])
    """

    def __init__(self, local_steps: int, fragments: int = 1) -> None:
        self._local_steps = local_steps
        self._ends = [(f + 1) * local_steps // fragments for f in range(fragments)]
        self._step = 0
        self._since = [0] * fragments

    def step(self) -> int | None:
        """Counts a step, and returns the fragment to mix now, if there is one."""
        self._step = self._step % self._local_steps + 1
        self._since = [steps + 1 for steps in self._since]
        if self._step not in self._ends:
            return None
        fragment = self._ends.index(self._step)
        self._since[fragment] = 0
        return fragment

    @property
    def is_due(self) -> bool:
        """True if a fragment is mixed after the next step."""
        return self._step % self._local_steps + 1 in self._ends

    def close(self) -> list[int]:
        """Ends the round, and returns the fragments with steps since their last mix."""
        since, self._since = self._since, [0] * len(self._since)
        self._step = 0
        return [fragment for fragment, steps in enumerate(since) if steps]

    @property
    def place(self) -> list[int]:
        """The position in a round: its step, and each fragment's steps since its mix.

        >>> rounds, other = MixSchedule(4), MixSchedule(4)
        >>> _ = rounds.step(), rounds.step(), rounds.step()
        >>> other.place = rounds.place
        >>> rounds.step(), other.step(), other.place
        (0, 0, [4, 0])
        """
        return [self._step, *self._since]

    @place.setter
    def place(self, place: Sequence[int]) -> None:
        self._step, *self._since = place


def balanced_groups(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Returns groups of whole variables, of about equal size.

    The largest variable first, each goes to the group that is smallest so far (Graham,
    "Bounds on Multiprocessing Timing Anomalies", 1969: the largest group is at most 4/3
    of the smallest possible). No two groups differ by more than the largest variable.
    Layers of equal size go to the groups in turn: the strided pattern of Streaming
    DiLoCo (arXiv 2501.18512), which it prefers to groups of neighbours. Returns each
    group's indices, ascending; no group is empty. Sizes have any unit.

    >>> balanced_groups([6, 1, 6, 1], 2)
    [[0, 1], [2, 3]]
    """
    if count > len(sizes):
        raise ValueError(
            "a fragment has one variable of the model or more, so there are at most as "
            f"many as variables that are mixed, {len(sizes)} in this model; received "
            f"fragments={count}"
        )
    groups: list[list[int]] = [[] for _ in range(count)]
    total = [0] * count
    for index in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        # The fewest variables decide between groups of equal size, so none stays empty.
        least = min(range(count), key=lambda each: (total[each], len(groups[each])))
        groups[least].append(index)
        total[least] += sizes[index]
    return [sorted(group) for group in groups]


def after_overlap(
    model: np.ndarray, snapshot: np.ndarray, mixed: np.ndarray, num_trainable: int
) -> np.ndarray:
    """Returns the mixed model, with the local progress since its snapshot on top.

    Trainable weights become mixed + (model - snapshot): CoCoD-SGD (Shen et al., "Faster
    Distributed Deep Net Training: Computation and Communication Decoupled Stochastic
    Gradient Descent", IJCAI 2019, algorithm 1). As a doubly stochastic mix keeps the mean
    of all snapshots, this keeps the mean of all models.

    Statistics move by the same difference, but not beyond the two values that they lie
    between: a variance must not become negative. The first `num_trainable` elements are
    trainable weights.

    >>> model, snapshot, mixed = np.array([3.0, 1.0]), np.array([2.0, 5.0]), np.zeros(2)
    >>> after_overlap(model, snapshot, mixed, num_trainable=1)
    array([1., 0.])
    """
    moved = mixed + (model - snapshot)
    rest = slice(num_trainable, None)
    low, high = np.minimum(mixed, model), np.maximum(mixed, model)
    moved[rest] = np.clip(moved[rest], low[rest], high[rest])
    return moved
