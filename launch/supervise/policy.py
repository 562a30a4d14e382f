"""Decides when a job is over, and which tasks to restart before it is. Pure."""

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from launch.job.plan import COORDINATOR, TaskPlan, task_name
from tf_config import Task
from tf_config.contract import EXIT_RESTART, EXIT_STALLED

LOST = -1000
"""The return code of a task on a host that was lost: below that of any signal."""

_LONGEST_DELAY = 30.0  # seconds
_FAILURES = 3


@dataclass(frozen=True)
class Verdict:
    """The end of a job.

    Attributes:
        status: Its exit status.
        reason: Why, unless it simply succeeded.
        lost_host: The host whose tasks have to run elsewhere.
    """

    status: int
    reason: str = ""
    lost_host: str = ""


def leader(plans: Sequence[TaskPlan]) -> Task | None:
    """Returns the task whose exit status is the job's: the chief, or else worker 0.

    A job of servers has no leader, and runs until it is told to end.
    """
    scripts = [plan.task for plan in plans if not plan.is_server]
    for task in (Task("chief", 0), Task("worker", 0)):
        if task in scripts:
            return task
    return None


def judge(
    kind: str,
    plans: Sequence[TaskPlan],
    exits: Mapping[Task, int],
    given_up: Collection[Task] = (),
) -> Verdict | None:
    """Decides whether the job is over.

    A program ends when its chief, evaluator and workers that run the script have ended;
    a ps that runs a script may run forever, so it does not count. A task that fails ends
    the job at once, and so does a server that exits with any status while the chief of a
    coordinator program needs it.

    Args:
        kind: `coordinator` or `every_task`.
        plans: Every task of the job.
        exits: The return code of each task that has ended, in order of time;
            it is the negative signal number if a signal killed the task.
        given_up: Workers whose ends do not count any more, and are not in `exits`.

    Returns:
        The verdict, or None while the job runs.
    """
    first = leader(plans)
    if first is None:
        return None
    servers = {plan.task for plan in plans if plan.is_server}
    is_over = False
    for task, code in exits.items():
        if is_over and task.job != "evaluator":
            continue
        is_over = task == first and code == 0 and kind == COORDINATOR or is_over
        if code != 0 or task in servers:
            # A server that exits with status 0 is still a failure of the job.
            return Verdict(
                exit_status(code) or 1, f"{task_name(task)} {describe_exit(code)}"
            )
    if unfinished(plans, exits, given_up):
        return None
    return Verdict(0)


def to_restart(
    kind: str,
    plans: Sequence[TaskPlan],
    exits: Mapping[Task, int],
    resumes: bool = False,
) -> tuple[Task, ...]:
    """Decides which tasks to restart so that the job can continue.

    Beside ps a worker holds no state, so it is restarted alone; without any ps, what is
    said of a ps here is true of each worker. The variables of a lost ps are
    gone, and TensorFlow's chief cannot connect to its replacement: the chief restarts
    too, and resumes from its checkpoint. The same happens when the chief is lost. The
    next chief cannot use the variables on the ps, so every ps restarts with the chief,
    which frees their memory.

    A task is lost if it was killed, or if it is a server. A script that fails with an
    error of its own would fail again. Where every task runs the script, each needs all
    others, so all start again, if they can resume.

    Returns:
        Tasks of `plans`, in their order; none if the job is over or cannot continue.
    """
    if kind != COORDINATOR:
        # The first that fails says why: the others fail because of it.
        first = next((code for code in exits.values() if code), 0)
        may_resume = resumes and first and not is_program_error(first)
        is_over = 0 in exits.values()
        return tuple(each.task for each in plans) if may_resume and not is_over else ()
    servers = [plan.task for plan in plans if plan.is_server]
    # The tasks that have the variables.
    holders = [task for task in servers if task.job == "ps"] or servers
    chief = leader(plans)
    if chief is None or not holders or exits.get(chief) == 0:
        return ()
    again = {task for task in exits if task in servers}
    lost = again & set(holders)
    for task, code in exits.items():
        if is_program_error(code) and task not in servers:
            # The chief's script also fails because variables are gone.
            if task == chief and lost:
                continue
            return ()
        if code != 0:
            again.add(task)
    if lost or chief in again:
        again |= {chief, *holders}
    return tuple(plan.task for plan in plans if plan.task in again)


def can_spare(
    plans: Sequence[TaskPlan],
    lost: Collection[Task],
    given_up: Collection[Task],
    needed_workers: int,
) -> bool:
    """Decides whether the job can continue without tasks that will not come back."""
    workers = {plan.task for plan in plans if plan.task.job == "worker"}
    left = workers - set(lost) - set(given_up)
    return set(lost) <= workers and len(left) >= needed_workers


def may_come_back(code: int, exits: Mapping[Task, int]) -> bool:
    """Returns True if a lost worker is restarted while the others train on without it.

    >>> may_come_back(-9, {}), may_come_back(1, {}), may_come_back(LOST, {})
    (True, False, False)
    >>> may_come_back(-9, {Task("worker", 0): 0})  # The training is over.
    False
    """
    was_killed = code < 0 and code != LOST
    return (was_killed or code == EXIT_RESTART) and 0 not in exits.values()


def is_program_error(code: int) -> bool:
    """Returns True if a script failed by itself, and would fail again.

    Otherwise it succeeded, was killed, was lost with its host, or asks to be restarted.

    >>> [is_program_error(code) for code in (0, 1, 2, -9, LOST, EXIT_RESTART)]
    [False, True, True, False, False, False]
    """
    return code > 0 and code != EXIT_RESTART


def restart_delay(
    earlier: Sequence[float], now: float, max_restarts: int, window: float
) -> float | None:
    """Returns how long to wait before the next restart; None if there were too many.

    The first restart within a window is immediate; then the delay doubles each time.

    Args:
        earlier: The times of earlier recoveries, in seconds on a steady clock.
        now: The time on the same clock.
        max_restarts: How many restarts are allowed within the window.
        window: The length of the window, in seconds.

    >>> restart_delay([], 100, 3, 60), restart_delay([90, 99], 100, 3, 60)
    (0.0, 2.0)
    >>> restart_delay([10, 90, 99], 100, 3, 60)
    2.0
    >>> restart_delay([50, 90, 99], 100, 3, 60) is None
    True
    """
    recent = sum(now - time < window for time in earlier)
    if recent >= max_restarts:
        return None
    return min(2.0 ** (recent - 1), _LONGEST_DELAY) if recent else 0.0


def is_too_large(deaths: Sequence[float], now: float, window: float) -> bool:
    """Returns True if a task has died twice for its memory, and would do so again.

    Args:
        deaths: The times of such deaths, in seconds on a steady clock.
        now: The time on the same clock.
        window: The seconds over which they count. A task that takes longer to fill its
            memory continues each time from a later checkpoint.

    >>> [is_too_large(deaths, 1000, 600) for deaths in ([990], [300, 990], [700, 990])]
    [False, False, True]
    """
    return sum(now - time < window for time in deaths) > 1


def is_gone(failures: int, may_try_again: bool) -> bool:
    """Returns True to give up a host that cannot be reached.

    Args:
        failures: How many connections in a row have failed.
        may_try_again: Whether `restart_delay` allows another one.

    >>> is_gone(2, True), is_gone(3, True), is_gone(1, False), is_gone(0, False)
    (False, True, True, False)
    """
    return failures >= (_FAILURES if may_try_again else 1)


def unfinished(
    plans: Sequence[TaskPlan],
    exits: Mapping[Task, int],
    given_up: Collection[Task] = (),
) -> list[Task]:
    """Returns the tasks that run the script, and that the job is still waiting for."""
    scripts = [plan.task for plan in plans if not plan.is_server]
    tasks = [task for task in scripts if task.job != "ps"]
    return [task for task in tasks if task not in exits and task not in given_up]


def closing(plans: Sequence[TaskPlan], exits: Mapping[Task, int]) -> list[Task]:
    """Returns every ps that runs the script and has not ended yet."""
    tasks = [
        plan.task for plan in plans if plan.task.job == "ps" and not plan.is_server
    ]
    return [task for task in tasks if task not in exits]


def failed_evaluation(exits: Mapping[Task, int]) -> Verdict | None:
    """Returns the verdict on evaluators that the launcher has told to end.

    One that says by its status, or by ignoring the signal, that it has more to do has
    failed. One that SIGTERM ends says nothing.

    >>> failed_evaluation({Task("evaluator", 0): -15}), failed_evaluation({})
    (None, None)
    >>> failed_evaluation({Task("evaluator", 0): 1}).status
    1
    """
    for task, code in exits.items():
        if task.job == "evaluator" and code not in (0, -signal.SIGTERM):
            return Verdict(
                exit_status(code),
                f"{task_name(task)} {describe_exit(code)} when it was told to end: it has "
                "not evaluated the last checkpoint. Increase --straggler_timeout",
            )
    return None


def exit_status(code: int) -> int:
    """Returns the exit status a shell reports: 128 + n for a task killed by signal n.

    A lost task has 255, the status of ssh.

    >>> exit_status(3), exit_status(-9), exit_status(LOST)
    (3, 137, 255)
    """
    if code == LOST:
        return 255
    return code if code >= 0 else 128 - code


def describe_exit(code: int) -> str:
    """Describes a return code.

    >>> describe_exit(3), describe_exit(-9)
    ('exited with status 3', 'was killed by SIGKILL')
    """
    if code == LOST:
        return "was lost: its host, or the connection to it, has failed"
    if code >= 0:
        why = {
            EXIT_STALLED: ": it waited too long",
            EXIT_RESTART: " to be restarted",
        }
        return f"exited with status {code}{why.get(code, '')}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
