"""Time of a step of a model that is cut into stages.

Each stage keeps to the order of its schedule, so when a task starts follows from the tasks
before it: one pass over them, without the clock and the events of `tfdist.research.simulation`,
which would take several times as long. A search for a cut asks up to 1,500 times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tfdist.research.model_parallel.schedule import FORWARD, PipelineSchedule

Ways = Mapping[tuple[int, int], float]
"""Something of each pair of stages between which something is sent: from, to."""


@dataclass(frozen=True)
class Execution:
    """The way in which a step is executed.

    Attributes:
        schedule: The tasks of each stage.
        recompute: Whether a backward task computes the forward one again.
        waits: Whether a task waits for results of the same step; otherwise it has those
            of an earlier one, and all stages but the last compute again.
    """

    schedule: PipelineSchedule
    recompute: bool = False
    waits: bool = True

    @cached_property
    def order(self) -> list[tuple[int, bool, int]]:
        """Stage, whether it is forward, and microbatch of each task, in an order."""
        return [
            (stage, task.kind == FORWARD, task.microbatch)
            for stage, task in self.schedule.in_order()
        ]

    def computes_again(self, stage: int) -> bool:
        """Returns True if a stage's backward tasks recompute its forward tasks."""
        if self.waits:
            return self.recompute
        return stage < self.schedule.num_stages - 1


class StageCosts(NamedTuple):
    """The costs of the tasks of one microbatch.

    Attributes:
        forward: Seconds of the forward task of each stage.
        backward: Seconds of its backward task.
        sent: Seconds in which a link is busy with what a task sends to another stage:
            results to a later one, gradients to an earlier one.
        latency: Seconds from then until it is there.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    sent: Ways
    latency: Ways


def step_seconds(execution: Execution, costs: StageCosts) -> float:
    """Simulates a step, and returns its seconds.

    A stage computes its tasks in the schedule's order, each when all that it takes from
    other stages is there. Between two stages there is a link in each direction, which
    carries one task's results at a time, while stages compute.

    Cost: O(tasks and messages).

    >>> from tfdist.research.model_parallel.schedule import gpipe
    >>> costs = StageCosts([1, 1], [2, 2], {(0, 1): 5, (1, 0): 0}, {(0, 1): 1, (1, 0): 0})
    >>> step_seconds(Execution(gpipe(2, 3)), costs)
    26.0
    """
    count, waits = execution.schedule.num_stages, execution.waits
    backward = [
        seconds + execution.computes_again(stage) * costs.forward[stage]
        for stage, seconds in enumerate(costs.backward)
    ]
    ways: list[list[tuple[int, float, float]]] = [[] for _ in range(2 * count)]
    for (source, target), seconds in costs.sent.items():
        # Even numbers stand for what a stage sends back, odd ones for what it sends on.
        sender = 2 * source + (target > source)
        ways[sender].append((target, seconds, costs.latency[source, target]))
    free = [0.0] * count
    link_free: dict[tuple[int, int], float] = {}
    arrived: dict[tuple[int, bool, int], float] = {}
    last = 0.0
    for task in execution.order:
        stage, is_forward, microbatch = task
        start = max(free[stage], arrived.get(task, 0.0)) if waits else free[stage]
        end = start + (costs.forward if is_forward else backward)[stage]
        free[stage] = end
        for target, seconds, latency in ways[2 * stage + is_forward]:
            over = max(end, link_free.get((stage, target), 0.0)) + seconds
            link_free[stage, target] = over
            key = target, is_forward, microbatch
            arrived[key] = max(arrived.get(key, 0.0), over + latency)
            last = max(last, over + latency)
    return max(last, *free)
