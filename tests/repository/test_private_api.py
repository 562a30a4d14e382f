"""The private symbols and members of TensorFlow and Keras are declared, and exist."""

import ast
import importlib.util
from types import ModuleType

import pytest

from tests import private_api

# What needs the extra `estimator`.
OPTIONAL = [
    name
    for name in ("tf_keras", "tensorflow_estimator")
    if importlib.util.find_spec(name) is None
]


def is_installed(name: str) -> bool:
    return name.split(".")[0] not in OPTIONAL


def test_every_import_of_a_private_symbol_is_declared():
    found = {name for path in private_api.files() for name in private_api.imports(path)}
    assert found == {symbol.name for symbol in private_api.symbols()}


def test_the_code_uses_no_other_private_member():
    assert private_api.undeclared() == []


@pytest.mark.not_in_gate
def test_every_declared_member_is_used():
    unused = {member.name for member in private_api.declared_members()} - set(
        private_api.used()
    )
    assert unused == set()


def test_every_declared_symbol_exists():
    for symbol in private_api.symbols():
        if is_installed(symbol.name):
            private_api.resolve(symbol.name)


def test_every_declared_member_exists():
    members = [
        each for each in private_api.declared_members() if is_installed(each.owner)
    ]
    assert [each for each in members if not private_api.exists(each)] == []


def test_nothing_is_declared_twice():
    names = [symbol.name for symbol in private_api.symbols()]
    names += [
        f"{member.owner}.{member.name}" for member in private_api.declared_members()
    ]
    assert len(names) == len(set(names))


def test_the_page_is_up_to_date():
    assert private_api.PAGE.read_text() == private_api.page(), (
        "docs/private-api.md is out of date: make docs-private-api"
    )


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("variable._value", ["_value"]),
        ("setattr(variable, '_value', 1)", ["_value"]),
        ("_replace(Trainer, '_get_iterator', ours)", ["_get_iterator"]),
        ("_ask_driver(keras.Model, '_build', ours)", ["_build"]),
        ("class A:\n  def f(self):\n    self._value", []),
        ("def patched(self):\n  self._value = 1", ["_value"]),
        ("class A(B):\n  def f(self):\n    super()._value", []),
        ("variable.__dict__", []),
        ("pair._replace(first=1)", []),
        ("getattr(self, '_value')", []),
    ],
)
def test_private_members_are_found_in_code(code, found):
    assert [name for name, _ in private_api.accessed(ast.parse(code))] == found


def test_inherited_members_are_found_in_code():
    code = """
import keras

class Layer(keras.layers.Layer):
    def _flatten_layers(self):
        return super()._flatten_layers() + self._layers + self._own
"""
    module = ModuleType("module")
    exec(code, vars(module))  # noqa: S102
    found = [name for name, _ in private_api.inherited(ast.parse(code), module)]
    assert sorted(found) == ["_flatten_layers", "_flatten_layers", "_layers"]
