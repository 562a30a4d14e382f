"""Selects the tasks to fork from the fork server, and says why not the others. Pure."""

import re
import sys
from collections.abc import Mapping, Sequence

from launch.console.tf_noise import LOG_LEVEL
from launch.job import gpus
from launch.job.plan import SERVER, Program, TaskPlan
from launch.job.script_source import sources
from tf_config import contract

AUTO, ON, OFF = MODES = ("auto", "on", "off")
"""Modes of forking tasks: where it is safe and saves time, where it is safe, never."""

_FEWEST = 2
# Code that must come before the import of TensorFlow, and would do nothing in a process
# that has imported it. The source cannot tell whether and when it runs. A false match
# costs the time of an import, and `tfdist.cluster.fork_server` refuses what is missed.
_LATE = re.compile(
    r"\benvironb?\s*(\[.*\]\s*[+|]?=(?!=)|\|=|\.(update|setdefault|pop|popitem|clear)\b)"
    # Another name for it.
    r"|\benvironb? as\b|=\s*(os\.)?environb?\s*$"
    r"|\bdel\b.*\benvironb?\b|\b(put|unset)env\b|\b(load_dotenv|read_env)\b"
    r"|\bsys\.(path|modules|meta_path|path_hooks)\b|\bfrom sys import\b",
    re.MULTILINE,
)


def is_wanted(mode: str, forkable: Sequence[TaskPlan]) -> bool:
    """Returns True if a job has a fork server, given the tasks that it could fork."""
    return len(forkable) >= (1 if mode == ON else _FEWEST) and mode != OFF


def environment(
    plans: Sequence[TaskPlan], environ: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment for the fork server's import of TensorFlow."""
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
    """Returns why a task must be spawned, or '' if the fork server may fork it."""
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
    if plan.argv[1 : 1 + len(SERVER)] == SERVER:
        return ""
    if plan.is_server:
        return "its server is another program"
    found = too_late(Program.of(plan.argv[1:]))
    return found and f"its script has {found}, which may come too late"


def too_late(program: Program) -> str:
    """Returns code of a script, or a module beside it, that may run too late; or ''."""
    found = (_LATE.search(text) for text, _ in sources(program))
    return next((match[0].strip(" =") for match in found if match), "")


def _read_early(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that an import may read."""
    return {
        name: value for name, value in environ.items() if name not in contract.READ_LATE
    }
