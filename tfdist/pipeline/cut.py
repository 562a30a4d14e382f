"""Where a chain of layers is cut into stages of about equal cost. Pure."""

from collections.abc import Collection, Sequence

from tfdist.pipeline.errors import PipelineError


def cut(
    costs: Sequence[float], num_stages: int, joined: Collection[tuple[int, int]] = ()
) -> list[int]:
    """Cuts a sequence into consecutive stages, the costliest of which costs least.

    Cost: O(n^2 K) for n items.

    >>> cut([1, 1, 1, 3], 2)
    [0, 0, 0, 1]

    Args:
        costs: The cost of each item, in the order in which they are computed.
        num_stages: The number of stages, K.
        joined: Pairs of a first and a last item that must be in one stage, with all
            items between them, as the calls of a shared layer.

    Returns:
        The stage of each item.

    Raises:
        PipelineError: If there are fewer pieces than stages.
    """
    pieces = _pieces(len(costs), joined)
    if not 1 <= num_stages <= len(pieces):
        raise PipelineError(
            f"stages={num_stages} needs a layer for each stage; received a model of "
            f"{len(pieces)} layers that can be apart (calls of one layer, and what is "
            f"between them, cannot). Choose between 1 and {len(pieces)} stages"
        )
    ends = _ends([sum(costs[i] for i in piece) for piece in pieces], num_stages)
    stages = [0] * len(costs)
    for number, piece in enumerate(pieces):
        for item in piece:
            stages[item] = sum(number >= end for end in ends)
    return stages


def _pieces(count: int, joined: Collection[tuple[int, int]]) -> list[range]:
    """Returns the ranges of items that no cut divides."""
    closed = {i for first, last in joined for i in range(first + 1, last + 1)}
    starts = [i for i in range(count) if i not in closed]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], count], strict=True)]


def _ends(costs: Sequence[float], num_stages: int) -> list[int]:
    """Returns where each stage but the last ends."""
    total = [0.0]
    for each in costs:
        total.append(total[-1] + each)
    count = len(costs)
    # Of the first n pieces in k + 1 stages: the greatest cost, and where the last begins.
    best = [[(cost, 0) for cost in total]]
    for k in range(1, num_stages):
        row = [(float("inf"), 0)] * (count + 1)
        for n in range(k + 1, count + 1):
            row[n] = min(
                (max(best[-1][start][0], total[n] - total[start]), start)
                for start in range(k, n)
            )
        best.append(row)
    ends, end = [], count
    for row in reversed(best[1:]):
        end = row[end][1]
        ends.append(end)
    return ends[::-1]
