"""One step of a placed model as a simulation: when what is computed and sent."""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tfdist.research.model_parallel.work import Work
from tfdist.research.simulation.simulator import Simulator

# The cause if it is a message: its number, below all numbers of tasks.
_MESSAGE = -2
_NOTHING = -1


class SimulatedTransfer(NamedTuple):
    """A tensor, or the gradient of one, on its way to another device.

    It begins to leave at `start` and is there at `arrival`, in seconds. `tensor` is its
    number in `Work.tensors`, and `cause` what it waited for last, as in a `SimulatedStep`.
    """

    source: int
    target: int
    tensor: int
    is_gradient: bool
    microbatch: int
    start: float
    arrival: float
    cause: int


@dataclass
class SimulatedStep:
    """The record of a simulated step, by the numbers of its tasks.

    `cause` is what each task waited for last: the number of a task, which sent it
    something or kept its device busy; `-2 - n` for message n; -1 for nothing. `ended`
    counts tasks. The seconds are infinite if the run was given up.
    """

    seconds: float
    ended: int
    device: list[int]
    start: list[float]
    end: list[float]
    cause: list[int]
    messages: list[SimulatedTransfer]

    def critical_path(self) -> list[int]:
        """Returns tasks and messages, coded as in `cause`, each waiting for the last."""
        at = max(range(len(self.end)), key=self.end.__getitem__)
        path = []
        while at != _NOTHING:
            path.append(at)
            at = (
                self.messages[_MESSAGE - at].cause if at <= _MESSAGE else self.cause[at]
            )
        return path[::-1]


def simulate(
    work: Work, assignment: Sequence[int], *, limit: float = math.inf
) -> SimulatedStep:
    """Simulates one step of a placed model, or gives up after `limit` seconds of it.

    A device computes one task at a time: of those whose inputs are there, the one of
    the highest upward rank; with several microbatches, forward tasks come before
    backward tasks, and earlier microbatches first, as in GPipe. A link sends one tensor
    at a time, in the order in which they were computed, while devices compute. Each
    tensor is sent to a device once, and its gradient comes back once, summed there. The
    backward task of a node needs its forward task, and the gradients of all uses of its
    outputs.

    Cost: one event per task and one per message.
    """
    return _Step(work, assignment).run(limit)


class _Step:
    def __init__(self, work: Work, assignment: Sequence[int]) -> None:
        self._n, self._parts = work.num_nodes, work.microbatches
        self._outputs, self._inputs = work.outputs, work.inputs
        self._tensors, self._rates = work.tensors, work.rates
        self._device = [assignment[unit] for unit in work.unit_of]
        speeds = [work.devices[device].speed for device in self._device]
        self._seconds = [
            seconds / speed
            for kind in work.seconds
            for seconds, speed in zip(kind, speeds, strict=True)
        ]
        self._place = work.preference
        total = work.num_tasks
        self._simulator = Simulator()
        self._run = SimulatedStep(
            math.inf, 0, self._device, [0.0] * total, [0.0] * total, [-1] * total, []
        )
        devices = len(work.devices)
        self._ready: list[list[tuple[int, int]]] = [[] for _ in range(devices)]
        self._is_busy = [False] * devices
        self._link_free = [[0.0] * devices for _ in range(devices)]
        self._link_last = [[_NOTHING] * devices for _ in range(devices)]
        self._group_targets()

    def _group_targets(self) -> None:
        """Sorts the uses of each tensor by device, and counts what each task needs."""
        n, device = self._n, self._device
        # A backward task needs its forward task, and one sum of gradients per device.
        missing = [len(each) for each in self._inputs] + [1] * n
        self._uses: list[dict[int, list[int]]] = []
        summed = []
        for tensor in self._tensors:
            uses: dict[int, list[int]] = {}
            for target in tensor.targets:
                uses.setdefault(device[target], []).append(target)
            self._uses.append(uses)
            summed.append(Counter(device[target] for target in tensor.trained))
            missing[n + tensor.source] += len(summed[-1])
        self._missing = missing * self._parts
        # The number of gradients that are still to be added up on each device.
        self._open = [each.copy() for _ in range(self._parts) for each in summed]

    def run(self, limit: float) -> SimulatedStep:
        for task, missing in enumerate(self._missing):
            if not missing:
                heapq.heappush(self._queue_of(task), (self._place[task], task))
        # Only when all are in the queues does a device know what it prefers.
        for device in range(len(self._ready)):
            self._next(device, _NOTHING)
        self._simulator.run(until=limit)
        if self._run.ended == len(self._missing):
            self._run.seconds = max(self._run.end)
        return self._run

    def _queue_of(self, task: int) -> list[tuple[int, int]]:
        return self._ready[self._device[task % self._n]]

    def _next(self, device: int, ended: int) -> None:
        """Starts the first of the ready tasks on a device that has become free."""
        self._is_busy[device] = bool(self._ready[device])
        if self._ready[device]:
            _, task = heapq.heappop(self._ready[device])
            if ended != _NOTHING:
                self._run.cause[task] = ended
            self._start(device, task)

    def _start(self, device: int, task: int) -> None:
        self._is_busy[device] = True
        self._run.start[task] = self._simulator.now
        seconds = self._seconds[task % (2 * self._n)]
        self._simulator.after(seconds, partial(self._end, device, task))

    def _end(self, device: int, task: int) -> None:
        self._run.end[task] = self._simulator.now
        self._run.ended += 1
        part, at = divmod(task, 2 * self._n)
        if at < self._n:
            self._needs_one_less(task + self._n, task)
            for tensor in self._outputs[at]:
                for target in self._uses[tensor]:
                    self._send(device, target, tensor, False, part, task)
        else:
            for tensor in self._inputs[at - self._n]:
                self._add_gradient(device, tensor, part, task)
        self._next(device, task)

    def _add_gradient(self, device: int, tensor: int, part: int, task: int) -> None:
        source, _, _, trained = self._tensors[tensor]
        if task % self._n in trained:
            still = self._open[part * len(self._tensors) + tensor]
            still[device] -= 1
            if not still[device]:
                self._send(device, self._device[source], tensor, True, part, task)

    def _send(
        self, source: int, target: int, tensor: int, back: bool, part: int, task: int
    ) -> None:
        if source == target:
            self._arrive(target, tensor, back, part, task)
            return
        per_byte, latency = self._rates[source][target]
        now, free = self._simulator.now, self._link_free[source][target]
        # The link is taken at once: tensors leave in the order in which they were computed.
        start = max(now, free)
        over = start + per_byte * self._tensors[tensor].size
        self._link_free[source][target] = over
        # A message waited for its link, or for nothing but its tensor.
        cause = self._link_last[source][target] if free > now else task
        code = _MESSAGE - len(self._run.messages)
        self._link_last[source][target] = code
        self._run.messages.append(
            SimulatedTransfer(
                source, target, tensor, back, part, start, over + latency, cause
            )
        )
        self._simulator.after(
            over + latency - now,
            partial(self._arrive, target, tensor, back, part, code),
        )

    def _arrive(
        self, device: int, tensor: int, back: bool, part: int, cause: int
    ) -> None:
        first = 2 * self._n * part
        if back:
            source = self._tensors[tensor].source
            self._needs_one_less(first + self._n + source, cause)
        else:
            for target in self._uses[tensor][device]:
                self._needs_one_less(first + target, cause)

    def _needs_one_less(self, task: int, cause: int) -> None:
        self._missing[task] -= 1
        if self._missing[task]:
            return
        self._run.cause[task] = cause
        device = self._device[task % self._n]
        # The task that ended just now still has the device. Its successor is chosen
        # when all tasks that it made ready are known.
        if self._is_busy[device]:
            heapq.heappush(self._ready[device], (self._place[task], task))
        else:
            self._start(device, task)
