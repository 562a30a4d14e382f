"""What launcher and library agree on is written down once: `tf_config.contract`."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import launch
import tf_config
import tfdist
from tf_config import contract
from tf_config.contract import Report

CONSTANTS = {name: value for name, value in vars(contract).items() if name.isupper()}
VARIABLES = ("LAUNCH_", "TFDIST_")
EXITS = {contract.EXIT_STALLED, contract.EXIT_RESTART}
"""2 is left out: it is also a number of ps, and much else."""
WORDS = {value for value in CONSTANTS.values() if isinstance(value, str)}
OTHER_MEANINGS = {
    contract.STATUS_CONTAINER: "the name of tfdist's logger",
    contract.STATUS_VARIABLE: "a package, and an argument",
    contract.TRAINING: "a module of Estimator",
}


def files() -> list[Path]:
    packages = [
        Path(package.__file__).parent for package in (launch, tf_config, tfdist)
    ]
    found = [path for package in packages for path in package.rglob("*.py")]
    return [path for path in found if path != Path(contract.__file__)]


def literals(tree: ast.AST) -> Iterator[ast.Constant]:
    """Every literal of a module that is not a docstring."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and not isinstance(node, ast.Expr):
                yield child


def breaches(source: str) -> list[object]:
    """The literals that belong in the contract."""
    return [
        literal.value
        for literal in literals(ast.parse(source))
        if (type(literal.value) is int and literal.value in EXITS)
        or literal.value in WORDS - OTHER_MEANINGS.keys()
        or (isinstance(literal.value, str) and literal.value.startswith(VARIABLES))
    ]


@pytest.mark.parametrize(
    "source",
    [
        "os._exit(75)",
        "STALLED = 69",
        'os.environ.get("TFDIST_STALL_TIMEOUT")',
        'env = {"TF_CONFIG": text}',
        'os.environ["LAUNCH_SOMETHING_NEW"]',
        'tell({"event": "stalled"})',
        '"-m", "tfdist.server"',
    ],
)
def test_a_literal_is_found(source):
    assert breaches(source)


def test_launcher_and_library_share_no_literal():
    found = {path: breaches(path.read_text()) for path in files()}
    assert len(found) > 100
    assert {str(path): each for path, each in found.items() if each} == {}


def test_both_sides_use_every_constant():
    # Or else one side has another name for it, or it need not be in the contract.
    for package, unused in (
        # The library knows its own modules; the user's script records progress.
        (
            tfdist,
            {
                "FORK_SERVER_MODULE",
                "CHECKPOINT_MODULE",
                "ESTIMATOR_MODULE",
                "PROGRESS",
            },
        ),
        (launch, set()),
    ):
        source = "\n".join(
            path.read_text() for path in Path(package.__file__).parent.rglob("*.py")
        )
        assert {
            name for name in CONSTANTS if not re.search(rf"\b{name}\b", source)
        } == unused, package


def test_the_modules_exist():
    root = Path(tfdist.__file__).parent.parent
    for module in (
        contract.SERVER_MODULE,
        contract.CHECKPOINT_MODULE,
        contract.ESTIMATOR_MODULE,
        contract.FORK_SERVER_MODULE,
    ):
        path = root / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or path.is_dir()


@settings(deadline=None)
@given(st.text(), st.lists(st.text()), st.text())
def test_a_report_survives_the_pipe(event, tasks, why):
    report = Report(event, tuple(tasks), why)
    assert report.to_line().count("\n") == 1
    assert Report.from_line(report.to_line()) == report


@settings(deadline=None)
@given(
    st.one_of(
        st.text(),
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda each: (
                st.lists(each)
                | st.dictionaries(st.sampled_from(["event", "tasks", "why"]), each)
            ),
        ).map(json.dumps),
    )
)
def test_any_line_is_a_report_or_none(line):
    report = Report.from_line(line)
    assert report is None or all(isinstance(task, str) for task in report.tasks)
