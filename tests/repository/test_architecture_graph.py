"""The packages depend on each other as docs/architecture.md draws them."""

import ast
import functools
import importlib.util
import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOTS = {
    name: Path(importlib.util.find_spec(name).origin).parent
    for name in ("tf_config", "launch", "tfdist")
}
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
PICTURE = PAGE.with_name("architecture-packages.svg")


@functools.cache
def modules():
    """Every module by its dotted name."""
    found = {}
    for top, root in ROOTS.items():
        for path in root.rglob("*.py"):
            parts = (top, *path.relative_to(root).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@functools.cache
def imported(path):
    """The modules that a file imports, at its top, late or for types alone."""
    return {*imports_of(path, modules())}


def imports_of(path, names):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in names else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def arrows_between(room_of):
    names = modules()
    arrows = defaultdict(set)
    for name, path in names.items():
        arrows[room_of(name)] |= {
            room_of(other) for other in imported(path) if other in names
        } - {room_of(name)}
    return arrows


def room(name):
    """Returns a module's package below the top, `tfdist.keras` of `tfdist.keras.hooks`."""
    parts = name.split(".")
    return parts[0] if parts[0] == "tf_config" else ".".join(parts[:2])


def folder(name):
    """Returns the package in whose folder a module lies, at any depth."""
    path = modules()[name]
    root = ROOTS[name.split(".")[0]].parent
    return ".".join(path.parent.relative_to(root).parts)


def reached(start, arrows):
    seen, rest = set(), [start]
    while rest:
        for other in arrows.get(rest.pop(), ()):
            if other not in seen:
                seen.add(other)
                rest.append(other)
    return seen


def drawn():
    """The arrows of the page: `package -> package, package` in its last code block."""
    block = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.S)[-1]
    lines = [line.partition("->") for line in block.splitlines() if line.strip()]
    return {
        name.strip(): {each.strip() for each in others.split(",") if each.strip()}
        for name, _, others in lines
    }


def is_package(name):
    """Returns True if a room is drawn, which those that all may use are not."""
    if name in ("tfdist._tf", "tfdist._support"):
        return False
    top, _, rest = name.partition(".")
    return not rest or (ROOTS[top] / rest).is_dir()


@pytest.mark.parametrize("of_module", [room, folder])
def test_no_room_depends_on_itself_through_others(of_module):
    arrows = arrows_between(of_module)
    assert [each for each in arrows if each in reached(each, arrows)] == []


def test_support_imports_nothing_of_tfdist():
    assert arrows_between(room)["tfdist._support"] == {"tf_config"}


def test_nothing_in_the_core_imports_research():
    arrows = arrows_between(room)
    assert {
        name for name, others in arrows.items() if "tfdist.research" in others
    } == set()


def test_the_page_draws_the_arrows():
    found = {
        name: {other for other in others if is_package(other)}
        for name, others in arrows_between(room).items()
        if is_package(name) and name not in ROOTS.keys() - {"tf_config"}
    }
    assert drawn() == found


def test_the_picture_has_each_package_above_what_it_imports():
    height = {
        each.get("id"): float(each.get("y"))
        for each in ElementTree.parse(PICTURE).iter()
        if each.get("id") in {"launch", "tfdist._tf"} | drawn().keys()
    }
    assert height.keys() - {"launch", "tfdist._tf"} == drawn().keys()
    upwards = {
        (name, other)
        for name, others in drawn().items()
        for other in others
        if height[name] >= height[other]
    }
    assert upwards == set()
