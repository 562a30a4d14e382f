"""Private members and imports of TensorFlow and Keras: what the code uses.

    python -m tests.private_api           # the counts, and what is not declared
    python -m tests.private_api --write   # the counts and the order of the page's rows

The tables of docs/private-api.md declare them; `tests/repository/test_private_api.py` compares the
two.
"""

import ast
import functools
import importlib
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import tfdist

ROOT = Path(tfdist.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "private-api.md"
PRIVATE_PACKAGES = (
    "tensorflow.python",
    "tensorflow.compiler",
    "keras.src",
    "tf_keras.",
    "tensorflow_estimator",
)
# The headings of a table of the page, and its rows.
TABLE = re.compile(r"((?:^\|.*\n){2})((?:^\|.*\n)+)", re.MULTILINE)
# Underscored names that Python documents.
OF_PYTHON = {"_asdict", "_exit", "_fields", "_fields_", "_make", "_replace"}


class Symbol(NamedTuple):
    """A private symbol that `tfdist/_tf/` or `tfdist/estimator/_tf.py` imports."""

    name: str
    why: str
    public: str


class Member(NamedTuple):
    """A private member of a class of TensorFlow or Keras.

    `owner` declares it, by the name that it can be imported under; `use` is `overridden`,
    `called`, `read`, `set` or `patched`.
    """

    owner: str
    name: str
    use: str
    why: str
    public: str


def _rows(number: int) -> Iterator[tuple[str, list[str]]]:
    """Each name in the page's table with that number, and the other cells of its row."""
    _, rows = TABLE.findall(PAGE.read_text())[number]
    for line in rows.splitlines():
        names, *rest = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`([^`]+)`", names):
            yield name, rest


@functools.cache
def symbols() -> list[Symbol]:
    """The symbols that the page declares."""
    return [Symbol(name, *rest) for name, rest in _rows(0)]


@functools.cache
def declared_members() -> list[Member]:
    """The members that the page declares."""
    return [Member(*name.rsplit(".", 1), *rest) for name, rest in _rows(1)]


def files() -> list[Path]:
    """All that may use a private name."""
    return sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The full names of what a file imports from private packages."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith(PRIVATE_PACKAGES))


def is_private(name: str) -> bool:
    return bool(re.fullmatch(r"_[A-Za-z]\w*", name)) and name not in OF_PYTHON


def accessed(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Private names that are read, set or looked up by a string on another object."""
    of_methods = {
        id(node)
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef)
        for node in ast.walk(cls)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            # Outside of a class, `self` is the object of a method that is patched.
            if not (_is_own(node.value) and id(node) in of_methods):
                yield node.attr, node.lineno
        elif isinstance(node, ast.Call):
            # `getattr`, or a function of ours that is told what to patch.
            name = node.args[1] if len(node.args) > 1 else None
            if not isinstance(name, ast.Constant) or _is_own(node.args[0]):
                continue
            if isinstance(name.value, str) and is_private(name.value):
                yield name.value, node.lineno


def inherited(tree: ast.AST, module: ModuleType) -> Iterator[tuple[str, int]]:
    """Private names that classes of a module override, or use, of a foreign base."""
    for node in ast.walk(tree):
        cls = isinstance(node, ast.ClassDef) and getattr(module, node.name, None)
        if not isinstance(cls, type) or not isinstance(node, ast.ClassDef):
            continue
        names = foreign_names(cls)
        for each in ast.walk(node):
            if isinstance(each, ast.FunctionDef) and each.name in names:
                yield each.name, each.lineno
            # A class attribute, which the code of the base reads by its name.
            if isinstance(each, ast.Assign) and each in node.body:
                for target in each.targets:
                    if isinstance(target, ast.Name) and is_private(target.id):
                        yield target.id, each.lineno
            if not isinstance(each, ast.Attribute) or each.attr not in names:
                continue
            if _is_own(each.value):
                yield each.attr, each.lineno


def foreign_names(cls: type) -> set[str]:
    """The private members of the classes of TensorFlow and Keras that a class extends."""
    names: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.split(".")[0] in ("tensorflow", "keras", "tf_keras"):
            names |= members(base)
    return names


def members(cls: type) -> set[str]:
    """The private members of one class: its own, and what its methods set on `self`."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):
        source = ""
    found = {*vars(cls), *re.findall(r"\bself\.(_\w+)", source)}
    return {name for name in found if is_private(name)}


def _is_own(value: ast.AST) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def needs_flower(tree: ast.Module) -> bool:
    """Whether a module imports Flower at its top, which this environment does not have."""
    return any(
        isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "flwr"
        for node in tree.body
    )


@functools.cache
def used() -> dict[str, list[str]]:
    """For each private name, the lines that use it, such as `keras/hooks.py:53`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in files():
        tree = ast.parse(path.read_text())
        name = ".".join(("tfdist", *path.relative_to(ROOT).with_suffix("").parts))
        uses = [*accessed(tree)]
        # Flower has an environment of its own, and its classes are not Keras's.
        if path.name != "__main__.py" and not needs_flower(tree):
            module = importlib.import_module(name.removesuffix(".__init__"))
            uses += inherited(tree, module)
        for private, line in uses:
            found[private].append(f"{path.relative_to(ROOT)}:{line}")
    return found


def undeclared() -> list[str]:
    """The lines that use a private member which is not declared."""
    names = {member.name for member in declared_members()}
    return sorted(
        f"{place}: {name}"
        for name, places in used().items()
        for place in places
        if name not in names
    )


def resolve(name: str) -> object:
    """Imports what a dotted name stands for.

    Raises:
        AttributeError: If it does not exist.
    """
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:i]))
        except ModuleNotFoundError:
            continue
        for part in parts[i:]:
            found = getattr(found, part)
        return found
    raise AttributeError(f"no module for {name}")


def exists(member: Member) -> bool:
    """Whether the class that is said to have a member has it, or a base of it."""
    owner = resolve(member.owner)
    if isinstance(owner, type):
        return any(member.name in members(base) for base in owner.__mro__)
    return hasattr(owner, member.name)


def page() -> str:
    """The page, with its tables sorted and counted; names with the same cells share a row."""
    imports = {s.name: s[1:] for s in sorted(symbols())}
    members = {f"{m.owner}.{m.name}": m[2:] for m in sorted(declared_members())}
    tables = iter((imports, members))
    text = TABLE.sub(lambda found: found[1] + _lines(next(tables)), PAGE.read_text())
    for heading, names in (("Imports", imports), ("Members", members)):
        text = re.sub(rf"(?m)^## {heading}: \d+$", f"## {heading}: {len(names)}", text)
    return text


def _lines(table: Mapping[str, tuple[str, ...]]) -> str:
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, cells in table.items():
        rows.setdefault(cells, []).append(f"`{name}`")
    return "".join(
        f"| {' | '.join((', '.join(names), *cells))} |\n"
        for cells, names in rows.items()
    )


def main() -> int:
    if "--write" in sys.argv:
        PAGE.write_text(page())
    print(f"{len(symbols())} imports, {len(declared_members())} members")
    for place in undeclared():
        print(f"not declared: {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
