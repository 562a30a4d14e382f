"""Cost of one step of parameter-server training, and the hosts of its tasks."""

import math
from dataclasses import dataclass, fields

from tfdist.research.simulation.resources import SharedResource

CORES = "the cores"
"""The resource of all tasks on one host."""


@dataclass(frozen=True)
class StepCost:
    """The use that one step makes of each task and link, without waits for others.

    CPU times are in seconds: of the worker, of all ps together, and of the chief. Bytes
    are `pulled` from all ps to the worker, `pushed` back, and `fed` by the chief: the
    batch. The chief requests `steps_per_message` in one message; in `idle` seconds the
    step uses nothing: latencies; the worker keeps `parallelism` cores busy; the fullest
    ps has the share `fullest_ps` of the bytes.

    `spread` is the standard deviation of each part of a step, relative to its mean.
    Without any, workers fall into a rhythm in which they hardly meet.

    A worker's gradients go out in `segments` parts, such as one per ps, one after the
    other. Between two steps of a message, each part of the weights comes back while the
    gradient of the next part goes out.
    """

    worker_cpu: float
    ps_cpu: float = 0.0
    chief_cpu: float = 0.0
    pulled: float = 0.0
    pushed: float = 0.0
    fed: float = 0.0
    steps_per_message: int = 1
    idle: float = 0.0
    parallelism: float = 1.0
    spread: float = 0.1
    fullest_ps: float = 1.0
    segments: int = 1

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = 1 if each.name in ("steps_per_message", "segments") else 0
            if not least <= value < math.inf:
                raise ValueError(
                    f"{each.name} must be a finite number >= {least}; received {value!r}"
                )
        if not self.worker_cpu + self.idle > 0:
            raise ValueError(
                "worker_cpu or idle must be positive, since a step takes time; received "
                f"{self.worker_cpu!r} and {self.idle!r}"
            )
        if not self.parallelism > 0:
            raise ValueError(
                f"parallelism must be > 0 cores; received {self.parallelism!r}"
            )
        if not 0 < self.fullest_ps <= 1:
            raise ValueError(
                f"fullest_ps is a share: > 0 and <= 1; received {self.fullest_ps!r}"
            )

    def alone(self, hosts: "Hosts") -> float:
        """Returns the seconds of a step that nothing else runs alongside.

        The chief prepares messages ahead, so its CPU takes no part in this.
        """
        computing = self.worker_cpu / min(self.parallelism, hosts.cores)
        serving = self.ps_cpu / hosts.ps_parallelism(self.fullest_ps)
        return self.idle + computing + serving + self.moving(hosts)

    def moving(self, hosts: "Hosts") -> float:
        """Returns the seconds of such a step in which bytes move: the mean of a message."""

        def seconds(amount: float) -> float:
            of_ps = amount * self.fullest_ps / hosts.rate
            return max(hosts.seconds_to_move(amount), of_ps)

        apart = seconds(self.pulled) + seconds(self.pushed)
        parts = self.segments
        pull, push = seconds(self.pulled / parts), seconds(self.pushed / parts)
        together = pull + (parts - 1) * max(pull, push) + push
        # Only between two steps of a message do bytes move both ways.
        last = apart / self.steps_per_message
        others = together * (1 - 1 / self.steps_per_message)
        return hosts.seconds_to_move(self.fed) + last + others


@dataclass(frozen=True)
class Hosts:
    """The hosts of the tasks: one for each task, or one for all.

    `cores` are those of each host. `rate` is in bytes per second of each task's link in
    each direction, infinite if links do not matter; after a pause, a worker's link
    passes `burst` bytes at once. `share` is the share of a common host's cores that the
    tasks can use in the long run, next to other programs; as long as they use less, they
    get all cores at once.
    """

    cores: float = 1.0
    share_one: bool = False
    rate: float = math.inf
    burst: float = 0.0
    share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("cores", "rate"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name} must be positive; received {getattr(self, name)!r}"
                )
        if not self.burst >= 0:
            raise ValueError(f"burst must be >= 0 bytes; received {self.burst!r}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be > 0 and <= 1; received {self.share!r}")

    def ps_parallelism(self, fullest_ps: float) -> float:
        """Returns how many cores work for one step on the ps: one each, in parallel."""
        return min(1 / fullest_ps, self.cores) if self.share_one else 1 / fullest_ps

    def seconds_to_move(self, amount: float) -> float:
        """Returns the seconds in which a worker's own link passes some bytes."""
        return max(amount - self.burst, 0.0) / self.rate


class Parts:
    """The resources of the tasks, and how much of each a unit of work takes."""

    def __init__(self, cost: StepCost, hosts: Hosts) -> None:
        fullest, one = cost.fullest_ps, {}
        if hosts.share_one:
            one = {SharedResource(CORES, hosts.cores): 1.0}
            self.chief = self.ps = self.worker = one
        else:
            self.chief = {SharedResource("the chief's interpreter", 1.0): 1.0}
            self.ps = {
                SharedResource("the cores of the fullest ps", hosts.cores): fullest
            }
            # A worker computes one step at a time, so its cores are only a limit.
            self.worker = {}
        self.ps_parallelism = hosts.ps_parallelism(fullest)
        self.worker_cores = min(cost.parallelism, hosts.cores)
        self.chief_link: dict[SharedResource, float] = {}
        self.links_out: dict[SharedResource, float] = {}
        self.links_in: dict[SharedResource, float] = {}
        if math.isfinite(hosts.rate):
            self.chief_link = {SharedResource("the chief's link", hosts.rate): 1.0}
            self.links_out, self.links_in = (
                {SharedResource(f"the fullest ps's link, {way}", hosts.rate): fullest}
                for way in ("out", "in")
            )
        [self.chief_name] = [each.name for each in self.chief]
        used = (self.chief, self.ps, self.chief_link, self.links_out, self.links_in)
        self.resources = list(dict.fromkeys(each for uses in used for each in uses))
