"""Which kind of program a script is, if the script itself shows it."""

import ast
from collections.abc import Collection, Iterator
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
    if asked == AUTO and imports_any(script, [ESTIMATOR_MODULE]):
        return EVERY_TASK
    return asked


def imports_any(script: str, modules: Collection[str]) -> bool:
    """Returns whether a script, or a module next to it, imports one of these modules.

    Args:
        script: The path of a Python script, which need not exist.
        modules: Dotted names of modules.
    """
    path, wanted = Path(script), tuple(f"{name}." for name in modules)
    return _imports_any(path, wanted, path.parent, set())


def _imports_any(
    file: Path, wanted: tuple[str, ...], root: Path, seen: set[Path]
) -> bool:
    seen.add(file)
    names = sorted(_imports(file))
    if any(f"{name}.".startswith(wanted) for name in names):
        return True
    # `a.b` is either the module b of the package a, or a name in the module a.
    modules = {each for name in names for each in (name, name.rpartition(".")[0])}
    beside = [root / f"{each.replace('.', '/')}.py" for each in sorted(modules - {""})]
    return any(
        _imports_any(path, wanted, root, seen)
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
