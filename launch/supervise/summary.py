"""The closing table of a job: how each task ended, and where its log is."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from signal import SIGKILL, SIGTERM

from launch.job.job import Job
from launch.job.plan import TaskPlan
from launch.supervise.policy import describe_exit, exit_status, failed_evaluation
from launch.supervise.running_tasks import RunningTasks
from launch.supervise.task_process import TaskProcess
from tf_config import Task


def summarize(
    job: Job,
    tasks: RunningTasks,
    note: Callable[[Task], str],
    marks: Sequence[float],
) -> str:
    """Returns the table of all tasks, and below it how long each phase took.

    Args:
        job: The job.
        tasks: The tasks that were started.
        note: Returns what else there is to say of the end of a task, or ''.
        marks: The starts of startup, run and teardown, and the end, in seconds.
    """
    cells = [("task", "ended", "status", "wall s", "CPU s", "log")]
    cells += [
        _row(plan, job.log_path(plan), tasks.get(plan.task), note(plan.task))
        for plan in job.plans
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        f"{name:{widths[0]}}  {ending:{widths[1]}}  {status:>{widths[2]}}"
        f"  {wall:>{widths[3]}}  {cpu:>{widths[4]}}  {log}"
        for name, ending, status, wall, cpu, log in cells
    ]
    startup, run, teardown = (end - start for start, end in pairwise(marks))
    times = f"startup {startup:.1f} s, run {run:.1f} s, teardown {teardown:.1f} s"
    return "\n".join([*lines, times])


def _row(
    plan: TaskPlan, log: str, task: TaskProcess | None, note: str
) -> tuple[str, str, str, str, str, str]:
    # A job that fails during startup never starts its other tasks.
    if task is None:
        return plan.name, "not started", "-", "0.0", "0.0", "-"
    if task.exit is None:
        return plan.name, "still alive", "-", "0.0", "0.0", log
    code = task.exit.code
    # The status of a task that was told to end says nothing about the job.
    obeyed = task.told_to_end and code != -SIGKILL
    obeyed = obeyed and not failed_evaluation({plan.task: code})
    status = "-" if obeyed else str(exit_status(code))
    ending = _describe_end(code, task.told_to_end)
    if task.told_to_end and code == -SIGTERM and plan.task.job == "evaluator":
        ending += ", maybe before it evaluated the last checkpoint"
    if task.exit.why:
        ending += f", {task.exit.why}"
    if task.restarts:
        ending += f", started {task.restarts + 1} times"
    if note:
        ending += f", {note}"
    return plan.name, ending, status, f"{task.wall:.1f}", f"{task.cpu:.1f}", log


def _describe_end(code: int, told_to_end: bool) -> str:
    if told_to_end:
        return f"{'killed' if code == -SIGKILL else 'ended'} by the launcher"
    if code < 0:
        return describe_exit(code)
    return "failed" if code else "finished"
