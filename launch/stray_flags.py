"""Flags of the launcher that were written after the script, which then gets them.

A script that ignores flags it does not know would train on the launcher's default
cluster, and nobody would notice.
"""

import ast
from collections.abc import Container

from launch.plan import Program
from launch.script_source import trees

# absl defines these in every script that uses it.
_OF_ANY_SCRIPT = {"help", "log_dir"}


def warning(program: Program, known: Container[str]) -> str:
    """Returns what to tell the user of flags that seem to be misplaced, or ''.

    A flag seems to be misplaced if the launcher has one of its name, and neither the
    script nor a module next to it mentions that name.
    """
    given = list(program.flags)
    if "--" in given:
        given = given[: given.index("--")]
    names = {flag: _name(flag) for flag in given}
    same = {
        flag
        for flag, name in names.items()
        if name in known and name not in _OF_ANY_SCRIPT
    }
    sources = [ast.dump(tree) for tree in trees(program)] if same else []
    stray = [
        flag
        for flag in given
        if flag in same and not any(_mentions(text, names[flag]) for text in sources)
    ]
    if not sources or not stray:
        return ""
    return (
        f"WARNING: {' '.join(stray)} after {program.script} belongs to the script, which "
        "does not mention it. If it is meant for the launcher, put it before the script"
    )


def _name(flag: str) -> str:
    """The name of a flag such as --num-ps=2, or '' of another argument."""
    is_flag = flag.startswith("--")
    return flag[2:].partition("=")[0].replace("-", "_") if is_flag else ""


def _mentions(source: str, name: str) -> bool:
    return name in source or name.replace("_", "-") in source
