"""What the source of a script shows, and of the modules beside it that it imports.

The source is parsed, not run.
"""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

from tf_config.contract import is_import_setting

_READERS = ("get", "getenv")


def imports_any(script: str, modules: Collection[str]) -> bool:
    """Returns whether a script, or a module next to it, imports one of these modules.

    Args:
        script: The path of a Python script, which need not exist.
        modules: Dotted names of modules.
    """
    wanted = tuple(f"{name}." for name in modules)
    return any(
        f"{name}.".startswith(wanted)
        for tree in _trees(Path(script))
        for name in _imports(tree)
    )


def import_setting(script: str) -> str:
    """Returns an environment variable that a script, or a module next to it, may set.

    Whether it is set cannot be told from the source. So this is the first that is named
    other than to be read.

    Args:
        script: The path of a Python script, which need not exist.

    Returns:
        A variable that TensorFlow, or what it imports, may read while it is imported;
        '' if there is none.
    """
    names = (name for tree in _trees(Path(script)) for name in _names(tree))
    return next(filter(is_import_setting, names), "")


def _trees(script: Path) -> Iterator[ast.Module]:
    """Yields the syntax tree of a script, and of each module beside it."""
    found = [script]
    for path in found:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # Python reports it when it runs the script.
        yield tree
        names = set(_imports(tree))
        # `a.b` is either the module b of the package a, or a name in the module a.
        names |= {name.rpartition(".")[0] for name in names} - {""}
        beside = (f"{name.replace('.', '/')}.py" for name in sorted(names))
        paths = [script.parent / each for each in beside]
        found += [each for each in paths if each.is_file() and each not in found]


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # No relative imports: a script is not in a package, so they would fail.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _names(tree: ast.Module) -> Iterator[str]:
    """Yields text and names of arguments, except where they are read by."""
    read = {id(each) for node in ast.walk(tree) for each in _read_by(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in read:
                yield node.value
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def _read_by(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return node.args if name in _READERS else []
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return [node.slice]
    return []
