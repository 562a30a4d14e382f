"""How activities share what they use: max-min fairness."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """Equal activities that share resources with others.

    `uses` has how much of each resource, by its number, one activity uses per unit of
    its rate; `limit` is the highest rate of one.
    """

    count: int
    uses: Mapping[int, float]
    limit: float = math.inf


def max_min_rates(
    demands: Sequence[Demand], capacities: Sequence[float]
) -> list[float]:
    """Returns the rate of one activity of each demand.

    All rates grow together from 0. An activity stops when it reaches its limit, or when
    a resource that it uses is exhausted (progressive filling: Bertsekas and Gallager,
    Data Networks, section 6.5.2). So no rate can grow without making a smaller one
    smaller, and no resource that somebody waits for is idle.

    Cost: O(demands x resources) for each rate at which somebody stops.

    >>> one_link = [Demand(2, {0: 1.0}), Demand(1, {0: 1.0}, limit=2.0)]
    >>> max_min_rates(one_link, [10.0])
    [4.0, 2.0]

    Raises:
        ValueError: If an activity uses nothing and has no limit.
    """
    for demand in demands:
        if not any(demand.uses.values()) and math.isinf(demand.limit):
            raise ValueError(
                "an activity needs a limit or a resource that it uses; received "
                f"{demand}"
            )
    rates = [0.0] * len(demands)
    free = list(capacities)
    growing = {at for at, demand in enumerate(demands) if demand.count}
    level = 0.0
    while growing:
        load = [0.0] * len(free)
        for at in growing:
            for resource, use in demands[at].uses.items():
                load[resource] += demands[at].count * use
        tops = [
            free[each] / load[each] if load[each] else math.inf
            for each in range(len(free))
        ]
        nearest = min(demands[at].limit for at in growing)
        step = max(min([*tops, nearest - level]), 0.0)
        level += step
        free = [each - step * used for each, used in zip(free, load, strict=True)]
        # Not by what is left, which rounding may keep from 0.
        exhausted = {each for each, top in enumerate(tops) if top <= step}
        stopped = {
            at
            for at in growing
            if demands[at].limit <= level
            or any(demands[at].uses.get(each) for each in exhausted)
        }
        if not stopped:  # The limit was reached up to rounding.
            stopped = {at for at in growing if demands[at].limit == nearest}
        for at in stopped:
            rates[at] = min(level, demands[at].limit)
        growing -= stopped
    return rates
