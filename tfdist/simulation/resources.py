"""Processors and links, and the activities that share them. Pure."""

import heapq
import itertools
import math
from collections.abc import Mapping

from tfdist.simulation.event import Event
from tfdist.simulation.fair_share import Demand, max_min_rates
from tfdist.simulation.simulator import Simulator, Timer

# What is left of an activity by rounding, relative to what it has progressed.
_ROUNDING = 1e-12


class Resource:
    """Something that activities share: the cores of a host, one direction of a link.

    Args:
        name: What reports call it.
        capacity: What it offers per second: cores (CPU seconds), or bytes.

    Attributes:
        used: What activities have taken from it so far.

    Raises:
        ValueError: If the capacity is not positive.
    """

    def __init__(self, name: str, capacity: float) -> None:
        if not capacity > 0:
            raise ValueError(
                f"the capacity of {name!r} must be positive; received {capacity!r}"
            )
        self.name = name
        self.capacity = capacity
        self.used = 0.0


class _Group:
    """Activities that use the same in the same way, and so progress equally."""

    def __init__(self, uses: dict[Resource, float], limit: float) -> None:
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
    new rates, where activities with the same resources and limit are one group.

    >>> simulator = Simulator()
    >>> resources, link = Resources(simulator), Resource("link", 100.0)
    >>> first, second = resources.run(100.0, {link: 1}), resources.run(300.0, {link: 1})
    >>> first.then(lambda _: print(simulator.now))
    >>> second.then(lambda _: print(simulator.now))
    >>> simulator.run()
    2.0
    4.0

    Args:
        simulator: The clock.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._groups: dict[object, _Group] = {}
        self._order = itertools.count()
        self._then = 0.0
        self._timer: Timer | None = None

    def run(
        self,
        amount: float,
        uses: Mapping[Resource, float],
        limit: float = math.inf,
    ) -> Event:
        """Starts an activity, and returns the event of its end.

        Without a limit and a resource, nothing slows it down: it ends at once.

        Args:
            amount: How much there is to do: CPU seconds, or bytes.
            uses: How much of each resource a unit of it takes.
            limit: The most of it that can be done per second, if it were alone.

        Raises:
            ValueError: If the amount is negative, or the limit is not positive.
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
        self._advance()
        key = (limit, frozenset(used.items()))
        group = self._groups.setdefault(key, _Group(used, limit))
        if not group.ends:
            # Small numbers lose less to rounding.
            group.progress = 0.0
        heapq.heappush(group.ends, (group.progress + amount, next(self._order), end))
        self._rearrange()
        return end

    @property
    def active(self) -> int:
        """How many activities are under way."""
        return sum(len(group.ends) for group in self._groups.values())

    def rates(self) -> dict[Resource, float]:
        """Returns what is taken from each resource per second at the moment."""
        taken: dict[Resource, float] = {}
        self._share()
        for group in self._busy():
            for resource, use in group.uses.items():
                rate = group.rate * use * len(group.ends)
                taken[resource] = taken.get(resource, 0.0) + rate
        return taken

    def settle(self) -> None:
        """Brings `Resource.used` up to the present time."""
        self._advance()

    def _busy(self) -> list[_Group]:
        return [group for group in self._groups.values() if group.ends]

    def _advance(self) -> None:
        elapsed, self._then = self._simulator.now - self._then, self._simulator.now
        if not elapsed:
            return
        for group in self._busy():
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
        self._advance()
        ended = []
        for group in self._busy():
            while group.ends and group.seconds_left == 0.0:
                _, order, end = heapq.heappop(group.ends)
                ended.append((order, end))
        self._timer = None
        self._share()
        seconds = min((group.seconds_left for group in self._busy()), default=math.inf)
        if math.isfinite(seconds):
            self._timer = self._simulator.after(seconds, self._arrive)
        for _, end in sorted(ended, key=lambda pair: pair[0]):
            end.happen()

    def _arrive(self) -> None:
        # Rounding may leave the first activity a hair short of its end for ever.
        self._advance()
        for group in self._busy():
            if group.seconds_left <= _ROUNDING * max(1.0, self._simulator.now):
                group.progress = max(group.progress, group.ends[0][0])
        self._continue()

    def _share(self) -> None:
        busy = self._busy()
        numbers: dict[Resource, int] = {}
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
