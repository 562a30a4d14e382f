"""What the source of a script imports, and the modules beside it that it imports.

The source is parsed, not run.
"""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path


def imports_any(script: str, modules: Collection[str]) -> bool:
    """Returns whether a script, or a module next to it, imports one of these modules.

    Args:
        script: The path of a Python script, which need not exist.
        modules: Dotted names of modules.
    """
    wanted = tuple(f"{name}." for name in modules)
    return any(
        f"{name}.".startswith(wanted)
        for tree in trees(script)
        for name in _imports(tree, ())
    )


def trees(script: str) -> Iterator[ast.Module]:
    """Yields the syntax tree of a script, and of each module or package beside it.

    Args:
        script: The path of a Python script, which need not exist.
    """
    root = Path(script).parent
    found = [Path(script)]
    for path in found:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # Python reports it when it runs the script.
        yield tree
        names = set(_imports(tree, path.parent.relative_to(root).parts))
        # `a.b` is either the module b of the package a, or a name in the module a. The
        # packages around it are imported too.
        parts = [name.split(".") for name in sorted(names)]
        heads = [root.joinpath(*p[:n]) for p in parts for n in range(1, len(p) + 1)]
        for head in heads:
            paths = (head.with_name(f"{head.name}.py"), head / "__init__.py")
            found += [p for p in paths if p not in found and p.is_file()]


def _imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    """Yields the dotted names of what is imported.

    Args:
        tree: The source.
        package: Where it is; () for a script, which can import nothing relative to it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            if node.level and not parents:
                continue
            module = [*parents, *([node.module] if node.module else [])]
            yield from (".".join([*module, alias.name]) for alias in node.names)
