"""Which kind of program a script is, if the script itself shows it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from launch.plan import AUTO, EVERY_TASK
from tf_config.contract import ESTIMATOR_MODULE


def kind_of_script(script: str, asked: str = AUTO) -> str:
    """Returns the kind that was asked for, or else the kind that the script shows.

    Every task runs an Estimator program, even with parameter servers. It is recognized
    by an import of `tfdist.estimator` in the script, or in a module next to it that it
    imports. The script is parsed, not run.

    Args:
        script: The path of a Python script, which need not exist.
        asked: One of `launch.plan.PROGRAM_KINDS`.

    Returns:
        The kind; `auto` if neither shows it. Then the cluster decides.
    """
    if asked == AUTO and _imports_estimator(Path(script), Path(script).parent, set()):
        return EVERY_TASK
    return asked


def _imports_estimator(file: Path, root: Path, seen: set[Path]) -> bool:
    seen.add(file)
    names = sorted(_imports(file))
    if any(f"{name}.".startswith(f"{ESTIMATOR_MODULE}.") for name in names):
        return True
    # `a.b` is either the module b of the package a, or a name in the module a.
    modules = {each for name in names for each in (name, name.rpartition(".")[0])}
    beside = [root / f"{each.replace('.', '/')}.py" for each in sorted(modules - {""})]
    return any(
        _imports_estimator(path, root, seen)
        for path in beside
        if path not in seen and path.is_file()
    )


def _imports(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # Python reports it when it runs the script.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # No relative imports: a script is not in a package, so they would fail.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
