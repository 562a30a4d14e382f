"""The closing table of a job: how each task ended, and where its log is."""

from collections.abc import Sequence
from dataclasses import dataclass
from signal import SIGKILL

from launch.plan import TaskPlan
from launch.supervise.policy import describe_exit, exit_status
from launch.supervise.task_process import TaskProcess


@dataclass(frozen=True)
class Row:
    """One task: how it ended, its times in seconds, and its log file."""

    name: str
    ending: str
    status: str
    wall: float
    cpu: float
    log: str


@dataclass(frozen=True)
class Phases:
    """How long the job spent in each phase, in seconds."""

    startup: float
    run: float
    teardown: float


def row(plan: TaskPlan, log: str, task: TaskProcess | None, note: str = "") -> Row:
    """Returns the row of a task."""
    # A job that fails during startup never starts its other tasks.
    if task is None:
        return Row(plan.name, "not started", "-", 0.0, 0.0, "-")
    if task.exit is None:
        return Row(plan.name, "still alive", "-", 0.0, 0.0, log)
    code = task.exit.code
    # The status of a task that was told to end says nothing about the job.
    obeyed = task.told_to_end and code != -SIGKILL
    status = "-" if obeyed else str(exit_status(code))
    ending = _describe_end(code, task.told_to_end)
    if task.restarts:
        ending += f", started {task.restarts + 1} times"
    if note:
        ending += f", {note}"
    return Row(plan.name, ending, status, task.wall, task.cpu, log)


def summarize(rows: Sequence[Row], phases: Phases) -> str:
    """Renders the table, with the times of the phases below."""
    cells = [("task", "ended", "status", "wall s", "CPU s", "log")]
    cells += [
        (row.name, row.ending, row.status, f"{row.wall:.1f}", f"{row.cpu:.1f}", row.log)
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        f"{name:{widths[0]}}  {ending:{widths[1]}}  {status:>{widths[2]}}"
        f"  {wall:>{widths[3]}}  {cpu:>{widths[4]}}  {log}"
        for name, ending, status, wall, cpu, log in cells
    ]
    times = (
        f"startup {phases.startup:.1f} s, run {phases.run:.1f} s, "
        f"teardown {phases.teardown:.1f} s"
    )
    return "\n".join([*lines, times])


def _describe_end(code: int, told_to_end: bool) -> str:
    if told_to_end:
        return f"{'killed' if code == -SIGKILL else 'ended'} by the launcher"
    if code < 0:
        return describe_exit(code)
    return "failed" if code else "finished"
