"""A job on this machine, as plain data that is sent to its supervisor."""

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from launch import forking
from launch.network import reach
from launch.plan import PlanError, TaskPlan


@dataclass(frozen=True)
class Job:
    """What a supervisor starts, and how long it waits.

    Attributes:
        kind: `coordinator` or `every_task`.
        plans: The plan of every task.
        log_dir: The directory of the log files.
        startup_timeout: Seconds within which every server must listen.
        grace_period: Seconds that a task that was told to end may take, before it is
            killed.
        straggler_timeout: Seconds that the other tasks of an every-task program may
            take after the chief has succeeded.
        echo: Whether to show the tasks' output on the terminal.
        chatty: Whether to show the output of every task, even if all print the same.
        network: One of `launch.network.reach.MODES`.
        max_restarts: How often lost tasks are restarted within `restart_window`.
        restart_window: Seconds within which restarts are counted.
        stall_timeout: Seconds after which a stopped task counts as lost.
        fork_server: One of `launch.forking.MODES`.

    Raises:
        PlanError: If `network` or `fork_server` is unknown.
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
    fork_server: str = forking.AUTO

    def __post_init__(self) -> None:
        if self.network not in reach.MODES:
            raise PlanError(
                f"unknown network {self.network!r}; it is one of "
                f"{', '.join(reach.MODES)}"
            )
        if self.fork_server not in forking.MODES:
            raise PlanError(
                f"unknown fork_server {self.fork_server!r}; it is one of "
                f"{', '.join(forking.MODES)}"
            )

    def log_path(self, plan: TaskPlan) -> str:
        """Returns the path of a task's log file."""
        return os.path.join(self.log_dir, plan.name.replace(":", "-") + ".log")

    def to_json(self) -> str:
        """Returns the job as one line of JSON; `from_json` reads it back."""
        plans = [plan.as_dict() for plan in self.plans]
        return json.dumps({**asdict(self), "plans": plans})

    @classmethod
    def from_json(cls, text: str | bytes) -> "Job":
        """Reads what `to_json` wrote."""
        value: dict[str, Any] = json.loads(text)
        plans = tuple(TaskPlan.from_dict(plan) for plan in value["plans"])
        return cls(**{**value, "plans": plans})
