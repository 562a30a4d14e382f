"""Which variable of a plan is which variable of a model. Imports no TensorFlow.

A variable is known by its path, shape and dtype. Of the path two things do not count:

- The numbers that Keras appends to names, since it goes on counting from model to model
  (`dense`, then `dense_1`).
- How the path begins, where nothing has the whole path: a model that is loaded from a
  file builds its layers one by one, and its `sequential/dense/kernel` is `dense/kernel`
  then.
"""

import heapq
import re
from collections.abc import Iterable, Iterator

from tfdist.placement.variable_spec import VariableSpec

_NUMBER = re.compile(r"_\d+(?=/|$)")

# While it loads or saves, Keras makes an optimizer of its base class to look at, whose
# variables are gone at once.
_ANY_OPTIMIZER = "optimizer/"

_Key = tuple[str, tuple[int, ...], str]


def canonical(path: str) -> str:
    """Returns a path without what does not count.

    >>> canonical("sequential_1/dense_12/kernel")
    'sequential/dense/kernel'
    """
    return _NUMBER.sub("", path).removeprefix(_ANY_OPTIMIZER)


def slot_kind(slot: str, weight: str) -> str:
    """Returns what is left of a slot's path without its optimizer and its weight.

    >>> slot_kind("adam/dense_1_kernel_velocity", "dense_1/kernel")
    'velocity'
    """
    kind = slot.rpartition("/")[2].removeprefix(weight.replace("/", "_"))
    return _NUMBER.sub("", kind).removeprefix("_")


class Matcher:
    """Finds, for one variable after the other, the same one among these.

    Of several that are the same it is the one that has been taken the fewest times,
    and the first of those.

    Cost: `O(d log n)` a variable, for paths of depth d.

    Args:
        specs: In creation order.
    """

    def __init__(self, specs: Iterable[VariableSpec]) -> None:
        self._specs = list(specs)
        self.taken = [0] * len(self._specs)
        # Of those with the same end of the path, shape and dtype: how many times each
        # was taken when it was put there, and its index.
        self._heaps: dict[_Key, list[tuple[int, int]]] = {}
        self._whole: dict[_Key, list[tuple[int, int]]] = {}
        for i, spec in enumerate(self._specs):
            path = canonical(spec.name)
            self._whole.setdefault((path, spec.shape, spec.dtype), []).append((0, i))
            for end in _ends(path):
                self._heaps.setdefault((end, spec.shape, spec.dtype), []).append((0, i))

    def find(self, spec: VariableSpec) -> int | None:
        """Returns the index of the same variable, or None if there is none."""
        least: int | None = None
        for heap in self._candidates(spec):
            index = self._least_taken(heap)
            if not self.taken[index]:
                return index
            least = index if least is None else least
        return least

    def of_same_path(self, spec: VariableSpec) -> VariableSpec | None:
        """Returns one of the same path, rather one that is not taken yet."""
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
        for end in _ends(path):
            if heap := self._whole.get((end, spec.shape, spec.dtype)):
                yield heap

    def _least_taken(self, heap: list[tuple[int, int]]) -> int:
        while heap[0][0] != self.taken[heap[0][1]]:
            index = heap[0][1]
            heapq.heapreplace(heap, (self.taken[index], index))
        return heap[0][1]


def _ends(path: str) -> Iterator[str]:
    """The ends of a path that are shorter than it, the longest first."""
    while "/" in path:
        path = path.partition("/")[2]
        yield path
