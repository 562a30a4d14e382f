"""Parameter-server training as a simulation: how many steps per second, and why."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tfdist.consistency.policy import Consistency, for_workers
from tfdist.research.simulation.process import Process, Steps, Store, sleep
from tfdist.research.simulation.resources import Resources, SharedResource
from tfdist.research.simulation.simulated_gate import SimulatedGate
from tfdist.research.simulation.simulator import Event, Simulator
from tfdist.research.simulation.size import Size, size_of
from tfdist.research.simulation.step_cost import CORES, Hosts, Parts, StepCost

# As in `tfdist.parameter_server.steps.in_flight`.
MESSAGES_PER_WORKER = 4
# The share of the steps in which workers that began together drift apart.
_WARM_UP = 0.25
# A resource is the bound if it is so busy, since queues make the last tenth hard to
# reach, or if workers lose such a share of their time to it: in step with each other,
# they all need it at once, and none needs it meanwhile.
_BUSY, _LOST = 0.9, 0.2
# The share of the time of a step that nothing else runs alongside.
_MOST = 0.5
# A spread that no time shows.
_NONE = 1e-6
STEPS, POLICY, EPOCH = "the steps themselves", "the policy", "the end of the epoch"
"""The bounds that are not resources: more workers help, wait for each other, or have no
step left to do."""
LINKS = "the links"
"""More workers help, and so do faster links: each step mostly moves its bytes."""


@dataclass(frozen=True)
class SimulationResult:
    """Results of a simulated training run after its warm-up, if it has one.

    `dropped` steps had gradients that came too late. `busy` is the share of its
    capacity in which each resource was used, by its name. `lost` is the share of the
    workers' time that a step takes longer than it would alone, by the name of the
    resource that it shares, `POLICY` or `EPOCH`. Staleness is the number of writes by
    others during a step: the mean, and the most, warm-up included. `moving` is the
    share of its time in which a step moves bytes, if nothing else runs.
    """

    steps: int
    dropped: int
    seconds: float
    busy: Mapping[str, float]
    lost: Mapping[str, float]
    staleness: float
    max_staleness: int
    moving: float

    @property
    def steps_per_second(self) -> float:
        """Steps that counted, per second."""
        return self.steps / self.seconds

    @property
    def bound(self) -> str:
        """The limit of the steps per second: a resource, or one of the bounds above."""
        for shares, enough in ((self.busy, _BUSY), (self.lost, _LOST)):
            name, share = max(shares.items(), key=lambda each: each[1])
            if share >= enough:
                return name
        return LINKS if self.moving > _MOST else STEPS


def simulate(
    cost: StepCost,
    hosts: Hosts,
    workers: int,
    policy: Consistency,
    *,
    steps: int = 0,
    epoch_steps: int = 0,
    seed: int = 0,
) -> SimulationResult:
    """Simulates training until that many steps have ended; see `size_of` for 0.

    The chief prepares messages ahead. A worker that is free gets the next one with its
    batches; each step then waits for the policy, pulls, computes and pushes. The ps
    work for it before they send and after they have received. All steps of an epoch
    have to finish before the next begins; `epoch_steps=0` is a single endless epoch,
    which a policy with rounds always gets.

    Cost: about 20 events per step, regardless of the number of workers; a policy that makes
    steps wait looks at all workers at each of three events.

    Raises ValueError for a number of workers that is out of range or too small for the
    policy, or if that lets no step start.
    """
    size = size_of(policy, workers, steps)

    def outcome(hosts: Hosts) -> SimulationResult:
        return _Training(cost, hosts, policy, size, epoch_steps, seed).run()

    found = outcome(hosts)
    # The load of other programs counts only if the tasks need all cores.
    if hosts.share_one and found.busy[CORES] > hosts.share:
        found = outcome(replace(hosts, cores=hosts.share * hosts.cores, share=1.0))
    return found


@dataclass
class _Counts:
    """Counts of events up to a time."""

    time: float = 0.0
    steps: int = 0
    dropped: int = 0
    lost: dict[str, float] = field(default_factory=dict)
    used: dict[SharedResource, float] = field(default_factory=dict)


class _Training:
    def __init__(
        self,
        cost: StepCost,
        hosts: Hosts,
        policy: Consistency,
        size: Size,
        epoch_steps: int,
        seed: int,
    ) -> None:
        workers, steps = size.workers, size.steps
        self._gate = SimulatedGate(for_workers(policy, workers))
        # A step that a policy may let wait reads its weights when it starts.
        cost = cost if self._gate.is_free else replace(cost, segments=1)
        self._cost, self._hosts = cost, hosts
        # The last round of an epoch could be one of too few gradients.
        self._epoch_steps = 0 if self._gate.has_rounds else epoch_steps
        if self._epoch_steps:
            steps = math.ceil(steps / epoch_steps) * epoch_steps
        self._epoch_over = Event()
        self._left: float = self._epoch_steps or math.inf
        self._workers = workers
        self._steps = steps
        self._random = random.Random(seed)
        self._simulator = Simulator()
        self._resources = Resources(self._simulator)
        self._parts = Parts(cost, hosts)
        self._now, self._warm = _Counts(), _Counts()
        self._room = Store(range(MESSAGES_PER_WORKER * workers))
        self._messages = Store()
        self._moving = dict.fromkeys(self._parts.resources, 0)

    def run(self) -> SimulationResult:
        Process(self._simulator, self._chief())
        for worker in range(self._workers):
            Process(self._simulator, self._worker(worker))
        self._simulator.run()
        now, warm = self._counted(), self._warm
        if now.steps + now.dropped < self._steps:
            raise ValueError(
                f"{self._gate.policy} lets no step go on any more after {now.steps} "
                f"steps of {self._workers} workers"
            )
        seconds = now.time - warm.time
        return SimulationResult(
            steps=now.steps - warm.steps,
            dropped=now.dropped - warm.dropped,
            seconds=seconds,
            busy={
                each.name: (now.used[each] - warm.used.get(each, 0.0))
                / (each.capacity * seconds)
                for each in self._parts.resources
            },
            lost={
                name: (lost - warm.lost.get(name, 0.0)) / (self._workers * seconds)
                for name, lost in now.lost.items()
            },
            staleness=self._gate.staleness,
            max_staleness=self._gate.max_staleness,
            moving=self._cost.moving(self._hosts) / self._cost.alone(self._hosts),
        )

    def _chief(self) -> Steps:
        while True:
            if not self._left:
                yield self._epoch_over
                self._epoch_over, self._left = Event(), self._epoch_steps
            # As many messages are in flight as under the driver of `fit`.
            yield self._room.take()
            steps = int(min(self._cost.steps_per_message, self._left))
            self._left -= steps
            amount = self._cost.chief_cpu * steps
            yield self._resources.run(amount, self._parts.chief, limit=1.0)
            self._messages.put(steps)

    def _worker(self, worker: int) -> Steps:
        while True:
            began = self._simulator.now
            is_last = not self._left
            steps = yield self._messages.take()
            self._lose(EPOCH if is_last else self._parts.chief_name, began, 0.0)
            yield from self._move(self._cost.fed * steps, self._parts.chief_link)
            is_pulled = False
            for step in range(steps):
                yield from self._allowed(self._gate.start(worker))
                if not is_pulled:
                    yield from self._pull(1)
                yield from self._compute()
                is_pulled = self._cost.segments > 1 and step + 1 < steps
                if self._gate.has_rounds:  # It is written where it is counted.
                    yield from self._write(is_pulled)
                counts = yield from self._allowed(self._gate.write(worker))
                if counts and not self._gate.has_rounds:
                    yield from self._write(is_pulled)
                self._gate.finish(worker)
                self._count(counts)
            self._room.put()

    def _allowed(self, answer: Event) -> Steps:
        began = self._simulator.now
        value = yield answer
        self._lose(POLICY, began, 0.0)
        return value

    def _pull(self, segments: int) -> Steps:
        cost, parts = self._cost, self._parts
        yield from self._do(cost.ps_cpu / 2 / segments, parts.ps, parts.ps_parallelism)
        yield from self._move(cost.pulled / segments, parts.links_out)

    def _compute(self) -> Steps:
        yield from self._do(
            self._cost.worker_cpu, self._parts.worker, self._parts.worker_cores
        )
        yield sleep(self._simulator, self._cost.idle * self._factor())

    def _push(self, segments: int) -> Steps:
        cost, parts = self._cost, self._parts
        yield from self._move(cost.pushed / segments, parts.links_in)
        yield from self._do(cost.ps_cpu / 2 / segments, parts.ps, parts.ps_parallelism)

    def _write(self, pulls: bool) -> Steps:
        """Pushes the gradients, and pulls the weights of the next step if asked to."""
        if not pulls:
            yield from self._push(1)
            return
        segments, pulled = self._cost.segments, Event()
        pulled.happen()
        for _ in range(segments):
            yield from self._push(segments)
            pulled = Process(self._simulator, self._after(pulled, self._pull(segments)))
        yield pulled

    def _after(self, event: Event, steps: Steps) -> Steps:
        yield event
        yield from steps

    def _move(self, amount: float, uses: Mapping[SharedResource, float]) -> Steps:
        """Moves bytes between a worker and the chief, or all ps."""
        # The worker's own link is a limit, and not a resource: nobody else uses it. Its
        # burst passes another link at once only if that is idle too.
        at_once = min(amount, self._hosts.burst)
        is_idle = not any(self._moving[each] for each in uses)
        for each in uses:
            self._moving[each] += 1
        yield from self._do(at_once, {} if is_idle else uses, math.inf)
        yield from self._do(amount - at_once, uses, self._hosts.rate)
        for each in uses:
            self._moving[each] -= 1

    def _do(
        self, amount: float, uses: Mapping[SharedResource, float], limit: float
    ) -> Steps:
        """Runs a part of a step, and notes how much longer it took than alone."""
        began = self._simulator.now
        amount *= self._factor()
        yield self._resources.run(amount, uses, limit)
        narrowest = min((each.capacity / uses[each] for each in uses), default=limit)
        for resource in uses:
            self._lose(resource.name, began, amount / min(limit, narrowest))

    def _lose(self, name: str, began: float, alone: float) -> None:
        lost = self._now.lost
        lost[name] = lost.get(name, 0.0) + self._simulator.now - began - alone

    def _factor(self) -> float:
        spread = self._cost.spread
        if spread < _NONE:
            return 1.0
        return self._random.gammavariate(1 / spread**2, spread**2)

    def _count(self, counts: bool) -> None:
        now = self._now
        if counts:
            now.steps += 1
        else:
            now.dropped += 1
        if not self._epoch_steps:
            if now.steps == math.ceil(self._steps * _WARM_UP) and not self._warm.steps:
                self._warm = self._counted()
        elif (now.steps + now.dropped) % self._epoch_steps == 0:
            self._epoch_over.happen()
        if now.steps + now.dropped >= self._steps:
            self._simulator.stop()

    def _counted(self) -> _Counts:
        self._resources.advance()
        used = {each: each.used for each in self._parts.resources}
        now = self._now
        return _Counts(self._simulator.now, now.steps, now.dropped, {**now.lost}, used)
