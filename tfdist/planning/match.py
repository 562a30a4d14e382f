"""Matches the variables of a model to those of a plan.

Variables match by path, shape and dtype. Two parts of a path are ignored:

- The numbers that Keras appends to names, since Keras keeps counting from model to model
  (`dense`, then `dense_1`).
- The beginning, if no variable has the whole path: Keras builds the layers of a model
  that it loads from a file one by one, so `sequential/dense/kernel` becomes
  `dense/kernel`.
"""

import heapq
import re
from collections.abc import Iterable, Iterator

from tfdist.placement.variable_spec import VariableSpec

_NUMBER = re.compile(r"_\d+(?=/|$)")

# While it loads or saves, Keras creates an optimizer of its base class to inspect, whose
# variables it deletes at once.
_ANY_OPTIMIZER = "optimizer/"

_Key = tuple[str, tuple[int, ...], str]


def canonical(path: str) -> str:
    """Returns a path without the parts that matching ignores.

    >>> canonical("sequential_1/dense_12/kernel")
    'sequential/dense/kernel'
    """
    return _NUMBER.sub("", path).removeprefix(_ANY_OPTIMIZER)


def slot_kind(slot: str, weight: str) -> str:
    """Returns a slot's path without the names of its optimizer and its weight.

    >>> slot_kind("adam/dense_1_kernel_velocity", "dense_1/kernel")
    'velocity'
    """
    kind = slot.rpartition("/")[2].removeprefix(weight.replace("/", "_"))
    return _NUMBER.sub("", kind).removeprefix("_")


class Matcher:
    """Finds the match of each variable among these.

    From several matches, it picks the one that was taken the fewest times, and the
    first of those.

    Cost: `O(d log n)` per variable, for paths of depth d.
    """

    def __init__(self, specs: Iterable[VariableSpec]) -> None:
        self._specs = list(specs)
        self.taken = [0] * len(self._specs)
        # By path (or end of path), shape and dtype: heaps of (times taken, index). The
        # count is of the moment of the push; `_least_taken` brings it up to date.
        self._heaps: dict[_Key, list[tuple[int, int]]] = {}
        self._whole: dict[_Key, list[tuple[int, int]]] = {}
        for i, spec in enumerate(self._specs):
            path = canonical(spec.name)
            self._whole.setdefault((path, spec.shape, spec.dtype), []).append((0, i))
            for end in _ends(path):
                self._heaps.setdefault((end, spec.shape, spec.dtype), []).append((0, i))

    def find(self, spec: VariableSpec) -> int | None:
        """Returns the index of the match, or None if there is none."""
        least: int | None = None
        for heap in self._candidates(spec):
            index = self._least_taken(heap)
            if not self.taken[index]:
                return index
            least = index if least is None else least
        return least

    def of_same_path(self, spec: VariableSpec) -> VariableSpec | None:
        """Returns a variable with the same path, preferably one not taken yet."""
        path = canonical(spec.name)
        same = [i for i, s in enumerate(self._specs) if canonical(s.name) == path]
        same.sort(key=lambda i: self.taken[i] > 0)
        return self._specs[same[0]] if same else None

    def _candidates(self, spec: VariableSpec) -> Iterator[list[tuple[int, int]]]:
        path = canonical(spec.name)
        if heap := self._whole.get((path, spec.shape, spec.dtype)):
            yield heap
        if heap := self._heaps.get((path, spec.shape, spec.dtype)):
            yield heap
        # Either path may be the longer one: the plan's above, the model's here.
        for end in _ends(path):
            if heap := self._whole.get((end, spec.shape, spec.dtype)):
                yield heap

    def _least_taken(self, heap: list[tuple[int, int]]) -> int:
        # Counts only grow, so a stale one is too low and comes up before it can
        # mislead.
        while heap[0][0] != self.taken[heap[0][1]]:
            index = heap[0][1]
            heapq.heapreplace(heap, (self.taken[index], index))
        return heap[0][1]


def _ends(path: str) -> Iterator[str]:
    """Yields the proper suffixes of a path, the longest first."""
    while "/" in path:
        path = path.partition("/")[2]
        yield path
