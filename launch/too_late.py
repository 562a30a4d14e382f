"""What a script does that must come before the import of TensorFlow, from its source.

In a process that has imported TensorFlow already, it would do nothing. Whether it is done,
and before the import, cannot be told from the source. So this errs on the safe side, which
costs a task the time of an import.
"""

import ast
from collections.abc import Iterator

from launch.plan import Program
from launch.script_source import trees
from tf_config.contract import is_import_setting

_READERS = ("get", "getenv")
_SETTERS = ("update", "setdefault", "pop", "popitem", "clear", "putenv", "unsetenv")
_FINDING = ("path", "modules", "meta_path", "path_hooks")
# Of python-dotenv, and of environs and django-environ: they set what an `.env` file says.
_FILE_LOADERS = ("load_dotenv", "read_env")
# What comes after the installed packages hides none of them.
_HARMLESS = ("append", "extend", "index", "count", "copy", "get", "keys", "items")


def too_late(program: Program) -> str:
    """Returns what a program, or a module next to it, may do too late in a fork, or ''.

    Args:
        program: A script or a module, which need not exist.

    Returns:
        Words that follow "its script may", such as "set KERAS_BACKEND".
    """
    nodes = [node for tree in trees(program) for node in ast.walk(tree)]
    read = {id(each) for node in nodes for each in _read_by(node)}
    named = (name for node in nodes if id(node) not in read for name in _names(node))
    if setting := next(filter(is_import_setting, named), ""):
        return f"set {setting}"
    if any(map(_sets_unnamed, nodes)):
        return "set any environment variable"
    changed = next(filter(None, map(_changes_finding, nodes)), "")
    return changed and f"change sys.{changed}"


def _names(node: ast.AST) -> Iterator[str]:
    """Yields the text of a constant, or the name of an argument."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg


def _read_by(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        return node.args if _name(node.func) in _READERS else []
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return [node.slice]
    return []


def _sets_unnamed(node: ast.AST) -> bool:
    """Whether a node sets environment variables that the source need not name."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return _is_environ(node.value) and not isinstance(node.slice, ast.Constant)
    if _loads_a_file(node):
        return True
    if not isinstance(node, ast.Call) or _name(node.func) not in _SETTERS:
        return False
    owner = getattr(node.func, "value", None)
    if not (_is_environ(owner) or _name(node.func).endswith("env")):
        return False
    given = node.args[:1]
    names = given[0].keys if given and isinstance(given[0], ast.Dict) else given
    is_named = all(isinstance(each, ast.Constant) for each in names)
    is_named &= all(each.arg for each in node.keywords)
    return not is_named or not (node.args or node.keywords)


def _loads_a_file(node: ast.AST) -> bool:
    """Whether a node sets environment variables from a file, or names what does anew."""
    if isinstance(node, ast.ImportFrom):
        return any(each.asname and each.name in _FILE_LOADERS for each in node.names)
    return isinstance(node, ast.Call) and _name(node.func) in _FILE_LOADERS


def _changes_finding(node: ast.AST) -> str:
    """Returns the member of `sys` by which a node changes what imports find, or ''."""
    if isinstance(node, ast.ImportFrom) and node.module == "sys":
        return next((each.name for each in node.names if each.name in _FINDING), "")
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return "" if node.attr in _HARMLESS else _of_sys(node.value)
    if isinstance(node, ast.Attribute):
        return _of_sys(node)
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return _of_sys(node.value)
    return ""


def _of_sys(node: ast.expr) -> str:
    is_its = isinstance(node, ast.Attribute) and _name(node.value) == "sys"
    return _name(node) if is_its and _name(node) in _FINDING else ""


def _is_environ(node: ast.AST | None) -> bool:
    return _name(node) in ("environ", "environb")


def _name(node: ast.AST | None) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))
