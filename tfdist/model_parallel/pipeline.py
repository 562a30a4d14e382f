"""A pipeline as a simulation: when each stage computes each task. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tfdist.model_parallel.may_start import MayStart, Place, Synchronous, check_order
from tfdist.model_parallel.schedule import BACKWARD, FORWARD, Schedule
from tfdist.simulation.event import Event, all_of
from tfdist.simulation.process import Process, Steps, sleep
from tfdist.simulation.simulator import Simulator


@dataclass(frozen=True)
class Ran:
    """A task that was computed.

    Attributes:
        place: The task.
        start: When it began, in seconds.
        end: When it ended, in seconds.
    """

    place: Place
    start: float
    end: float


@dataclass(frozen=True)
class Outcome:
    """What a simulated pipeline has done.

    Attributes:
        tasks: Every task, in the order in which they ended.
        num_stages: The number of stages.
    """

    tasks: tuple[Ran, ...]
    num_stages: int

    @property
    def seconds(self) -> float:
        """When the last task ended."""
        return max(each.end for each in self.tasks)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """The seconds in which each stage computed."""
        seconds = [0.0] * self.num_stages
        for each in self.tasks:
            seconds[each.place.stage] += each.end - each.start
        return tuple(seconds)

    @property
    def bubble(self) -> float:
        """The share of the time in which stages had nothing to do, on average."""
        return 1 - sum(self.busy) / (self.num_stages * self.seconds)

    def kept(self, stage: int) -> int:
        """Returns the most microbatches whose activations a stage kept at a time."""
        # A task that begins where another ends comes after it.
        changes = sorted(
            (each.start, 1, 1) if each.place.task.kind == FORWARD else (each.end, 0, -1)
            for each in self.tasks
            if each.place.stage == stage
        )
        now = peak = 0
        for _, _, change in changes:
            now += change
            peak = max(peak, now)
        return peak


def simulate(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    *,
    message: float = 0.0,
    steps: int = 1,
    rule: MayStart | None = None,
) -> Outcome:
    """Simulates some steps of a pipeline.

    A stage computes its tasks in the schedule's order. Each waits until what the rule
    names has ended and, if it was on another stage, has arrived.

    Cost: about 6 events per task.

    >>> from tfdist.model_parallel.schedule import gpipe
    >>> outcome = simulate(gpipe(2, 3), [1.0, 1.0], [2.0, 2.0])
    >>> outcome.seconds, outcome.bubble
    (12.0, 0.25)

    Args:
        schedule: The tasks of a step.
        forward: Seconds of the forward task of a microbatch on each stage.
        backward: The same of a backward task.
        message: Seconds in which the result of a task reaches another stage.
        steps: How many steps follow each other.
        rule: What a task waits for; by default the results of its own step.

    Raises:
        ValueError: If the seconds are not those of each stage, the schedule is none, or
            the rule has tasks wait for each other.
    """
    check_order(schedule)
    for name, seconds in (("forward", forward), ("backward", backward)):
        if len(seconds) != schedule.num_stages or not all(s >= 0 for s in seconds):
            raise ValueError(
                f"{name} has the seconds of each of the {schedule.num_stages} stages, at "
                f"least 0; received {list(seconds)}"
            )
    return _Pipeline(schedule, forward, backward, message, rule or Synchronous()).run(
        steps
    )


class _Pipeline:
    def __init__(
        self,
        schedule: Schedule,
        forward: Sequence[float],
        backward: Sequence[float],
        message: float,
        rule: MayStart,
    ) -> None:
        self._schedule, self._rule = schedule, rule
        self._seconds = {FORWARD: forward, BACKWARD: backward}
        self._message = message
        self._simulator = Simulator()
        self._ended: dict[Place, Event] = {}
        self._arrived: dict[Place, Event] = {}
        self._ran: list[Ran] = []

    def run(self, steps: int) -> Outcome:
        for step in range(steps):
            for stage, tasks in enumerate(self._schedule.stages):
                for task in tasks:
                    place = Place(step, stage, task)
                    self._ended[place], self._arrived[place] = Event(), Event()
        for stage in range(self._schedule.num_stages):
            Process(self._simulator, self._stage(stage, steps))
        self._simulator.run()
        stuck = [place for place, end in self._ended.items() if not end.has_happened]
        if stuck:
            raise ValueError(
                f"under {type(self._rule).__name__} the tasks of {self._schedule.name!r} "
                f"wait for each other: {stuck[0].task} of stage {stuck[0].stage} never "
                "starts. A task must wait only for tasks that can end before it starts"
            )
        return Outcome(tuple(self._ran), self._schedule.num_stages)

    def _stage(self, stage: int, steps: int) -> Steps:
        for step in range(steps):
            for task in self._schedule.stages[stage]:
                place = Place(step, stage, task)
                yield all_of(
                    [
                        (self._ended if needed.stage == stage else self._arrived)[
                            needed
                        ]
                        for needed in self._rule.waits_for(self._schedule, place)
                        # What came before the first step is there.
                        if needed.step >= 0
                    ]
                )
                start = self._simulator.now
                yield sleep(self._simulator, self._seconds[task.kind][stage])
                self._ran.append(Ran(place, start, self._simulator.now))
                self._ended[place].happen()
                self._simulator.after(self._message, self._arrived[place].happen)
