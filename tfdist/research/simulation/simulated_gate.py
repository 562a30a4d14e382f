"""Gate at which simulated workers wait for the policy of consistency."""

from tfdist.consistency.combinations import is_free
from tfdist.consistency.policy import Consistency
from tfdist.consistency.step_schedule import Released, StepSchedule
from tfdist.research.simulation.simulator import Event


class SimulatedGate:
    """Releases the workers as the policy's schedule says."""

    def __init__(self, policy: Consistency) -> None:
        self.policy = policy
        self._schedule = StepSchedule(policy)
        self._waiting: dict[int, Event] = {}
        self._count = self._sum = 0
        self.max_staleness = 0
        # Looking at all workers at each event would take most of the time.
        self.is_free = is_free(policy)
        self.has_rounds = getattr(policy, "replicas_to_aggregate", 1) > 1
        self._began: dict[int, int] = {}
        self._writing = 0

    @property
    def staleness(self) -> float:
        """The mean staleness of the gradients that were written."""
        return self._sum / self._count if self._count else 0.0

    def start(self, worker: int) -> Event:
        """Returns the event at which a worker's step may start."""
        event = self._waiting[worker] = Event()
        if self.is_free:
            self._began[worker] = self._count - self._writing
            event.happen()
        else:
            self._tell(self._schedule.arrive(worker))
        return event

    def write(self, worker: int) -> Event:
        """Returns the event at which a step may write; its value is whether it counts."""
        event = self._waiting[worker] = Event()
        if self.is_free:
            self._writing += 1
            self._note(self._count - self._began[worker])
            event.happen(True)
        else:
            self._tell(self._schedule.computed(worker))
        return event

    def finish(self, worker: int) -> None:
        """Ends a worker's step."""
        self._writing -= 1
        if not self.is_free:
            self._tell(self._schedule.finished(worker))

    def _tell(self, released: Released) -> None:
        for gradient in released.written:
            self._note(gradient.staleness)
            self._waiting[gradient.worker].happen(True)
        for gradient in released.dropped:
            self._waiting[gradient.worker].happen(False)
        for worker in released.started:
            self._waiting[worker].happen()

    def _note(self, staleness: int) -> None:
        self._count += 1
        self._sum += staleness
        self.max_staleness = max(self.max_staleness, staleness)
