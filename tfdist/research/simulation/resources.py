"""Processors and links, and the activities that share them by max-min fairness."""

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.research.simulation.simulator import Event, Simulator, Timer

# The rest of an activity that rounding leaves, relative to its progress.
_ROUNDING = 1e-12


class SharedResource:
    """Something that activities share: the cores of a host, one direction of a link.

    Its capacity is what it offers per second: cores (CPU seconds), or bytes; `used` is
    what activities have taken so far.
    """

    def __init__(self, name: str, capacity: float) -> None:
        if not capacity > 0:
            raise ValueError(
                f"the capacity of {name!r} must be positive; received {capacity!r}"
            )
        self.name = name
        self.capacity = capacity
        self.used = 0.0


_Key = tuple[float, frozenset[tuple[SharedResource, float]]]


class _Group:
    """Activities that use the same in the same way, and so progress equally."""

    def __init__(self, uses: dict[SharedResource, float], limit: float) -> None:
        self.uses = uses
        self.limit = limit
        self.progress = 0.0
        self.rate = 0.0
        self.ends: list[tuple[float, int, Event]] = []

    @property
    def seconds_left(self) -> float:
        """Seconds until the first activity ends at the present rate."""
        left = self.ends[0][0] - self.progress
        if left <= _ROUNDING * max(1.0, self.progress):
            return 0.0
        return left / self.rate if self.rate else math.inf


class Resources:
    """Runs activities, each as fast as a fair share of what it uses allows.

    Cost: an activity's start and end take O(log n), and O(groups x resources) for the
    new rates of all that it may slow down, where activities with the same resources and
    limit are one group.

    >>> simulator = Simulator()
    >>> resources, link = Resources(simulator), SharedResource("link", 100.0)
    >>> first, second = resources.run(100.0, {link: 1}), resources.run(300.0, {link: 1})
    >>> first.then(lambda _: print(simulator.now))
    >>> second.then(lambda _: print(simulator.now))
    >>> simulator.run()
    2.0
    4.0
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._pools: dict[_Key, _Pool] = {}
        self._order = itertools.count()

    def run(
        self,
        amount: float,
        uses: Mapping[SharedResource, float],
        limit: float = math.inf,
    ) -> Event:
        """Starts an activity, and returns the event of its end.

        The amount is CPU seconds or bytes, of which a unit takes `uses` of each
        resource; at most `limit` of it can be done per second. Without a limit and a
        resource, nothing slows it down: it ends at once.
        """
        if not (amount >= 0 and limit > 0):
            raise ValueError(
                "an activity needs an amount >= 0 and a limit > 0; received "
                f"{amount!r} and {limit!r}"
            )
        used = {each: use for each, use in uses.items() if use}
        end = Event()
        if amount == 0 or (not used and math.isinf(limit)):
            end.happen()
            return end
        key = (limit, frozenset(used.items()))
        pool = self._pools.get(key) or self._add(key, _Group(used, limit))
        pool.start(key, amount, next(self._order), end)
        return end

    @property
    def active(self) -> int:
        """The number of activities in progress."""
        return sum(
            len(group.ends) for pool in self._apart() for group in pool.groups.values()
        )

    def rates(self) -> dict[SharedResource, float]:
        """Returns the present use of each resource per second."""
        taken: dict[SharedResource, float] = {}
        for pool in self._apart():
            pool.share()
            for group in pool.busy():
                for resource, use in group.uses.items():
                    rate = group.rate * use * len(group.ends)
                    taken[resource] = taken.get(resource, 0.0) + rate
        return taken

    def advance(self) -> None:
        """Brings `SharedResource.used` up to the present time."""
        for pool in self._apart():
            pool.advance()

    def _apart(self) -> dict["_Pool", None]:
        return dict.fromkeys(self._pools.values())

    def _add(self, key: _Key, group: _Group) -> "_Pool":
        """Adds a group to those with which it shares a resource, directly or by others."""
        pool = _Pool(self._simulator)
        # Pools join and never part: their groups stay, for the next activities alike.
        for other in self._apart():
            if any(
                group.uses.keys() & each.uses.keys() for each in other.groups.values()
            ):
                pool.groups.update(other.close())
        pool.groups[key] = group
        self._pools.update(dict.fromkeys(pool.groups, pool))
        return pool


class _Pool:
    """Groups that may slow each other down, and no other."""

    def __init__(self, simulator: Simulator) -> None:
        self.groups: dict[_Key, _Group] = {}
        self._simulator = simulator
        self._then = simulator.now
        self._timer: Timer | None = None

    def start(self, key: _Key, amount: float, order: int, end: Event) -> None:
        """Starts an activity of a group."""
        self.advance()
        group = self.groups[key]
        if not group.ends:
            # Small numbers lose less to rounding.
            group.progress = 0.0
        heapq.heappush(group.ends, (group.progress + amount, order, end))
        self._rearrange()

    def close(self) -> dict[_Key, _Group]:
        """Stops, and returns the groups for another pool to continue with."""
        self.advance()
        if self._timer is not None:
            self._timer.cancel()
        return self.groups

    def busy(self) -> list[_Group]:
        """Returns the groups with activities in progress."""
        return [group for group in self.groups.values() if group.ends]

    def advance(self) -> None:
        """Brings the groups up to the present time."""
        elapsed, self._then = self._simulator.now - self._then, self._simulator.now
        if not elapsed:
            return
        for group in self.busy():
            done = group.rate * elapsed
            group.progress += done
            for resource, use in group.uses.items():
                resource.used += done * use * len(group.ends)

    def _rearrange(self) -> None:
        """Shares anew at the end of this moment, since several changes may share it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._simulator.after(0.0, self._continue)

    def _continue(self) -> None:
        self.advance()
        ended = []
        for group in self.busy():
            while group.ends and group.seconds_left == 0.0:
                _, order, end = heapq.heappop(group.ends)
                ended.append((order, end))
        self._timer = None
        self.share()
        seconds = min((group.seconds_left for group in self.busy()), default=math.inf)
        if math.isfinite(seconds):
            self._timer = self._simulator.after(seconds, self._arrive)
        # In the order of their starts, so that equal inputs give equal runs.
        for _, end in sorted(ended, key=lambda pair: pair[0]):
            end.happen()

    def _arrive(self) -> None:
        # Rounding may leave the first activity a hair short of its end forever.
        self.advance()
        for group in self.busy():
            if group.seconds_left <= _ROUNDING * max(1.0, self._simulator.now):
                group.progress = max(group.progress, group.ends[0][0])
        self._continue()

    def share(self) -> None:
        """Sets the rate of each group."""
        busy = self.busy()
        if len(busy) == 1:
            [group] = busy
            rates = [
                each.capacity / (use * len(group.ends))
                for each, use in group.uses.items()
            ]
            group.rate = min([group.limit, *rates])
            return
        numbers: dict[SharedResource, int] = {}
        for group in busy:
            for resource in group.uses:
                numbers.setdefault(resource, len(numbers))
        demands = [
            Demand(
                len(group.ends),
                {numbers[each]: use for each, use in group.uses.items()},
                group.limit,
            )
            for group in busy
        ]
        rates = max_min_rates(demands, [each.capacity for each in numbers])
        for group, rate in zip(busy, rates, strict=True):
            group.rate = rate


@dataclass(frozen=True)
class Demand:
    """Equal activities that share resources with others.

    `uses` has how much of each resource, by its number, one activity uses per unit of
    its rate; `limit` is the highest rate of one.
    """

    count: int
    uses: Mapping[int, float]
    limit: float = math.inf

    def __post_init__(self) -> None:
        if not any(self.uses.values()) and math.isinf(self.limit):
            raise ValueError(
                f"an activity needs a limit or a resource that it uses; received {self}"
            )


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
    """
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
        # Do not compare the rest with 0, since rounding may leave some.
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
