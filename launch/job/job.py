"""A job on this machine, as plain data that is sent to its supervisor."""

import os
from collections.abc import Collection
from dataclasses import dataclass

from launch.job import forking
from launch.job.plan import COORDINATOR, PlanError, TaskPlan, log_name
from launch.job.tunnel import Tunnel
from launch.network import reach
from launch.secure import mode
from tf_config import Task


@dataclass(frozen=True)
class Job:
    """A job: the tasks that a supervisor starts, and its time limits.

    Attributes:
        kind: `coordinator` or `every_task`.
        plans: The plan of every task.
        log_dir: The directory of the log files.
        startup_timeout: Seconds within which every server must listen.
        grace_period: Seconds that a task that was told to end may take, before it is
            killed.
        straggler_timeout: Seconds that the other tasks that run the script may take
            after the chief has succeeded.
        echo: Whether to show the tasks' output on the terminal.
        chatty: Whether to show the output of every task, even if all print the same.
        network: One of `launch.network.reach.MODES`.
        max_restarts: How often lost tasks are restarted within `restart_window`.
        restart_window: Seconds within which restarts are counted.
        stall_timeout: Seconds after which a stopped task is lost.
        fork_server: One of `launch.job.forking.MODES`.
        hosts: The addresses between the hosts; none if the job runs on this machine.
        protection: The hosts' protection from unauthorized hosts, one of
            `launch.secure.mode.MODES` but `auto`.
        tunnels: The TLS connections between the hosts.
        min_workers: How many workers the program needs; None for all.
        progress: One of `launch.supervise.progress.MODES`: `off` shows no line about how
            fast it trains.
        resumes: Whether a program that every task runs continues from a checkpoint when all
            of them start again.
        may_move: Whether the job ends, to start again elsewhere, when one of the hosts
            cannot be reached any more.

    Raises:
        PlanError: If `network` or `fork_server` is unknown, or `min_workers` does not
            fit the program.
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
    hosts: tuple[str, ...] = ()
    protection: str = mode.OFF
    tunnels: tuple[Tunnel, ...] = ()
    may_move: bool = False
    min_workers: int | None = None
    resumes: bool = False
    progress: str = "auto"

    def __post_init__(self) -> None:
        known = {"network": reach.MODES, "fork_server": forking.MODES}
        for name, modes in known.items():
            if (value := getattr(self, name)) not in modes:
                raise PlanError(
                    f"unknown {name} {value!r}; it is one of {', '.join(modes)}"
                )
        if self.min_workers is None:
            return
        workers = sum(plan.task.job == "worker" for plan in self.plans)
        has_ps = any(plan.task.job == "ps" for plan in self.plans)
        if (self.kind == COORDINATOR) != has_ps:
            raise PlanError(
                f"min_workers={self.min_workers} needs a program that only the chief "
                "runs, and ps; or workers that all run the script, and no ps"
            )
        if not 1 <= self.min_workers <= workers:
            raise PlanError(
                f"min_workers={self.min_workers} is not between 1 and {workers}, the "
                "number of workers"
            )

    @property
    def needed_workers(self) -> int:
        """The number of workers that the program needs."""
        workers = sum(plan.task.job == "worker" for plan in self.plans)
        return workers if self.min_workers is None else self.min_workers

    def tasks_on(self, hosts: Collection[str]) -> list[Task]:
        """Returns the tasks that run on some hosts."""
        return [p.task for p in self.plans if p.remote and p.remote.host in hosts]

    def log_path(self, plan: TaskPlan) -> str:
        """Returns the path of a task's log file."""
        return os.path.join(self.log_dir, log_name(plan.name))

    @property
    def closed_ports(self) -> list[int]:
        """The ports that no task on another host may open to unauthorized hosts."""
        return [plan.port for plan in self.plans if self.protection == mode.TLS]
