"""What Ray prepares on the nodes before a task starts: the code, and the user's wishes."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from launch.engines.engine import EngineError
from launch.plan import Program


def runtime_env(
    text: str | None, work_dir: str | None, ours: Sequence[str]
) -> dict[str, Any]:
    """Returns the runtime_env of a job, which ships the current directory.

    Args:
        text: The user's, as a JSON object or the name of a file with one.
        work_dir: A directory that the nodes have; then nothing is shipped.
        ours: Directories that the job writes here.

    Raises:
        EngineError: If the user's is none, or does not fit the directory.
    """
    given = {} if text is None else _parse(text)
    if work_dir is not None and "working_dir" in given:
        raise EngineError(
            "--work_dir is a directory that the nodes have, and working_dir of "
            "--runtime_env one that is shipped: give one of them"
        )
    if work_dir is not None or "working_dir" in given:
        return given
    # What the job writes there is of no use to it, and changes while it is shipped.
    inside = [os.path.relpath(each) for each in ours]
    excluded = [f"/{each}" for each in inside if not each.startswith("..")]
    excludes = [*given.get("excludes", []), *excluded]
    return {**given, "working_dir": os.getcwd(), "excludes": excludes}


def as_shipped(program: Program) -> Program:
    """Returns the program as it is found in the directory that is shipped."""
    if not os.path.isabs(program.script):
        return program
    path = os.path.relpath(program.script)
    return program if path.startswith("..") else replace(program, script=path)


def _parse(text: str) -> dict[str, Any]:
    value, content = None, text
    try:
        if not text.lstrip().startswith("{"):
            with open(text, encoding="utf-8") as file:
                content = file.read()
        value = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(
            f"--runtime_env={text!r}: {error}; write a JSON object, or the name of a "
            "file with one"
        ) from None
    if not isinstance(value, dict) or not isinstance(value.get("excludes", []), list):
        raise EngineError(
            'a runtime_env is a JSON object, such as {"pip": ["rich"]}, and excludes in '
            f"it a list; received --runtime_env={text!r}"
        )
    return value
