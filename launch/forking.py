"""Which tasks to fork from the fork server, and why not the others: pure decisions."""

import sys
from collections.abc import Mapping, Sequence

from launch import gpus
from launch.console.tf_noise import LOG_LEVEL
from launch.plan import SERVER, Program, TaskPlan
from launch.script_source import imports_any
from launch.too_late import too_late
from tf_config import contract

AUTO, ON, OFF = MODES = ("auto", "on", "off")
"""Whether tasks are forked: where it is safe and saves time, where it is safe, or never."""

_FEWEST = 2
_SHARED = ("tensorflow", "keras", contract.SERVER_MODULE.partition(".")[0])


def is_wanted(mode: str, plans: Sequence[TaskPlan]) -> bool:
    """Returns whether a job has a fork server.

    Args:
        mode: One of `MODES`.
        plans: Every task of the job.
    """
    return mode == ON or (mode == AUTO and is_worthwhile(plans))


def is_worthwhile(plans: Sequence[TaskPlan]) -> bool:
    """Returns whether enough tasks import what the fork server has imported.

    A script shows it by an import of its own, or of a module beside it.
    """
    known: dict[Program, bool] = {}
    sharing = 0
    for plan in plans:
        arguments = plan.argv[1:]
        if arguments[: len(SERVER)] == SERVER:
            sharing += 1
        elif arguments:
            program = Program.of(arguments)
            if program not in known:
                known[program] = imports_any(program, _SHARED)
            sharing += known[program]
    return sharing >= _FEWEST


def environment(
    plans: Sequence[TaskPlan], environ: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment in which the fork server imports TensorFlow.

    Args:
        plans: The tasks it is for.
        environ: The environment that the plans add to.
    """
    first, *rest = [{**environ, **plan.env} for plan in plans]
    common = {
        name: value
        for name, value in first.items()
        if all(each.get(name) == value for each in rest)
    }
    return _read_early(common)


def why_not(
    plan: TaskPlan, environ: Mapping[str, str], server: Mapping[str, str]
) -> str:
    """Returns why a task must be spawned, or '' if the fork server may fork it.

    Args:
        plan: The task's plan.
        environ: The environment of the task.
        server: The environment of the fork server.
    """
    if sys.platform != "linux":
        return f"this machine runs {sys.platform}"
    if plan.argv[0] != sys.executable:
        return f"its interpreter is {plan.argv[0]}, not {sys.executable}"
    if visible := gpus.available(environ):
        return f"it sees GPU {', '.join(visible)}"
    ours, theirs = _read_early(server), _read_early(environ)
    if plan.is_server:
        # A server that logs as much as the script does writes more to its log file only.
        ours.pop(LOG_LEVEL, None)
        theirs.pop(LOG_LEVEL, None)
    if different := {name for name, _ in ours.items() ^ theirs.items()}:
        return f"it has its own {', '.join(sorted(different))}"
    arguments = plan.argv[1:]
    is_ours = arguments[: len(SERVER)] == SERVER
    late = "" if is_ours else too_late(Program.of(arguments))
    return late and f"its script may {late}"


def _read_early(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that an import may read."""
    return {
        name: value for name, value in environ.items() if name not in contract.READ_LATE
    }
