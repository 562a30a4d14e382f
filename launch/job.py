"""A whole job on this machine, as plain data that travels to its supervisor."""

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from launch.network import reach
from launch.plan import PlanError, TaskPlan


@dataclass(frozen=True)
class Job:
    """What a supervisor starts, and how long it waits.

    `startup_timeout` is how long the servers have to listen; `grace_period` how
    long a task that was told to end may take before it is killed;
    `straggler_timeout` how long the rest of an every-task program may take after
    its chief has ended. All are seconds. `echo` shows the logs on the terminal: where
    all tasks do the same, the first one's, or everybody's if `chatty`.
    `network` is one of `launch.network.reach.MODES`. Lost tasks are started again at most
    `max_restarts` times within `restart_window` seconds; one that is stopped for
    `stall_timeout` seconds counts as lost.

    Raises:
        PlanError: If there is no such `network`.
    """

    kind: str
    plans: tuple[TaskPlan, ...]
    log_dir: str
    startup_timeout: float = 60.0
    grace_period: float = 10.0
    straggler_timeout: float = 60.0
    echo: bool = True
    chatty: bool = False
    network: str = reach.AUTO
    max_restarts: int = 0
    restart_window: float = 600.0
    stall_timeout: float = 1e9

    def __post_init__(self) -> None:
        if self.network not in reach.MODES:
            raise PlanError(
                f"unknown network {self.network!r}; it is one of "
                f"{', '.join(reach.MODES)}"
            )

    def log_path(self, plan: TaskPlan) -> str:
        """The log file of a task."""
        return os.path.join(self.log_dir, plan.name.replace(":", "-") + ".log")

    def to_json(self) -> str:
        """Writes the job on one line; `from_json` reads it back."""
        plans = [plan.as_dict() for plan in self.plans]
        return json.dumps({**asdict(self), "plans": plans})

    @classmethod
    def from_json(cls, text: str | bytes) -> "Job":
        """Reads what `to_json` wrote."""
        value: dict[str, Any] = json.loads(text)
        plans = tuple(TaskPlan.from_dict(plan) for plan in value["plans"])
        return cls(**{**value, "plans": plans})
