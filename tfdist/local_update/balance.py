"""Which variables of a model make up a fragment."""

from collections.abc import Sequence


def balanced_groups(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Returns groups of whole variables, of about equal size.

    The largest variable first, each goes to the group that is smallest so far (Graham,
    "Bounds on Multiprocessing Timing Anomalies", 1969: the largest group is at most 4/3
    of the smallest possible). No two groups differ by more than the largest variable.
    Layers of equal size go to the groups in turn: the strided pattern of Streaming
    DiLoCo (arXiv 2501.18512), which it prefers to groups of neighbours. Returns each
    group's indices, ascending; no group is empty. Sizes have any unit.

    Raises:
        ValueError: If there are fewer variables than groups.

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
        # Of groups of the same size the one of fewest variables: none stays empty.
        least = min(range(count), key=lambda each: (total[each], len(groups[each])))
        groups[least].append(index)
        total[least] += sizes[index]
    return [sorted(group) for group in groups]
