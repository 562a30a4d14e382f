"""Which kind of program a script is, where the script itself tells."""

import ast
from collections.abc import Iterator

from launch.plan import AUTO, EVERY_TASK

_ESTIMATOR = "tfdist.estimator"


def kind_of_script(script: str, asked: str = AUTO) -> str:
    """Returns the kind that was asked for, or else the one that the script tells.

    An Estimator's program is run by every task, also where there are parameter
    servers. It is known by its import of `tfdist.estimator`; nothing is run.

    Args:
        script: The path of a Python script, which need not exist.
        asked: One of `launch.plan.KINDS`.

    Returns:
        `auto` if the script does not tell: then the cluster does.
    """
    if asked == AUTO and any(
        f"{name}.".startswith(f"{_ESTIMATOR}.") for name in _imports(script)
    ):
        return EVERY_TASK
    return asked


def _imports(script: str) -> Iterator[str]:
    try:
        with open(script, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return  # Whoever runs it will say so.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
