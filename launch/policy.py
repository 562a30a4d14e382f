"""When a job is over, and with which exit status: a pure decision."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.plan import COORDINATOR, TaskPlan, task_name
from tf_config import Task


@dataclass(frozen=True)
class Verdict:
    """How a job ends: its exit status, and why if it is not a plain success."""

    status: int
    reason: str = ""


def leader(plans: Sequence[TaskPlan]) -> Task | None:
    """The task whose exit status is the job's: the chief, or else worker 0.

    A job of servers only has no leader, and lasts until it is told to end.
    """
    scripts = [plan.task for plan in plans if not plan.is_server]
    for task in (Task("chief", 0), Task("worker", 0)):
        if task in scripts:
            return task
    return None


def judge(
    kind: str, plans: Sequence[TaskPlan], exits: Mapping[Task, int]
) -> Verdict | None:
    """Decides whether the job is over.

    A coordinator program ends with its chief. An every-task program ends when its
    chief and workers (and evaluator) have; a ps that runs a script may go on for
    ever. A task that fails ends the job at once, and so does a server that ends
    in any way while the chief needs it.

    Args:
        kind: `coordinator` or `every_task`.
        plans: Every task of the job.
        exits: The return code of each task that has ended, in order of time;
            negative is the number of the signal that killed it.

    Returns:
        The verdict, or None while the job goes on.
    """
    first = leader(plans)
    if first is None:
        return None
    servers = {plan.task for plan in plans if plan.is_server}
    for task, code in exits.items():
        if task == first and code == 0 and kind == COORDINATOR:
            return Verdict(0)
        if code != 0 or task in servers:
            return Verdict(
                exit_status(code) or 1, f"{task_name(task)} {describe_exit(code)}"
            )
    if unfinished(plans, exits):
        return None
    return Verdict(0)


def unfinished(plans: Sequence[TaskPlan], exits: Mapping[Task, int]) -> list[Task]:
    """The tasks that an every-task program still waits for."""
    tasks = [plan.task for plan in plans if plan.task.job != "ps"]
    return [task for task in tasks if task not in exits]


def exit_status(code: int) -> int:
    """A return code as a shell reports it: 128 + n for a task killed by signal n.

    >>> exit_status(3), exit_status(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code


def describe_exit(code: int) -> str:
    """A return code in words.

    >>> describe_exit(3), describe_exit(-9)
    ('exited with status 3', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
