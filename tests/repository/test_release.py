"""What a release says of itself: its version, its Pythons, its extras."""

import ast
import configparser
import re
from pathlib import Path

import pytest
from documents import PAGES

from tf_config.commands import COMMANDS

from ..matrix import results

ROOT = Path(__file__).resolve().parents[2]
EXTRA = re.compile(r"pip install (.+?) \(the extra `(\w+)`\)")


@pytest.fixture(scope="module")
def setup():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_the_newest_release_of_the_changelog_is_this_version(setup):
    page = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## ([\d.]+) \(\d{4}-\d\d-\d\d\)$", page, re.M)
    assert newest[1] == setup["metadata"]["version"]


def test_the_pages_name_this_version(setup):
    """In the names of wheels and tags."""
    pattern = re.compile(r"(?:tfdist-|git tag v)(\d+\.\d+\.\d+)")
    found = {name for page in PAGES for name in pattern.findall(page.read_text())}
    assert found == {setup["metadata"]["version"]}


def test_what_a_reporter_reads_names_commands_that_exist():
    """And asks for what `tfdist env` prints."""
    files = [ROOT / "SECURITY.md", *(ROOT / ".github" / "ISSUE_TEMPLATE").iterdir()]
    named = {
        name
        for path in files
        for name in re.findall(r"`tfdist (\w+)", path.read_text())
    }
    assert {"env", "doctor"} <= named <= {*COMMANDS}


def test_the_classifiers_name_the_pythons_that_passed(setup):
    passed = {
        run["found"]["python"].rpartition(".")[0]
        for run in results.load()
        if run["passed"] and not run["failed"]
    }
    named = re.findall(r"Python :: (3\.\d+)$", setup["metadata"]["classifiers"], re.M)
    assert set(named) == passed


def texts(path):
    """The strings of a file, each of them whole."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_errors_name_the_packages_of_an_extra(setup):
    """And not `tfdist[extra]`, which pip would look for in an index."""
    found = set()
    for package in ("tfdist", "launch", "tf_config"):
        for path in (ROOT / package).rglob("*.py"):
            for text in texts(path):
                assert "tfdist[" not in text, path
                found |= set(EXTRA.findall(text))
    named = {extra for _, extra in found}
    assert named >= {"networkx", "privacy", "flower", "plot", "ray"}
    for packages, extra in found:
        lines = setup["options.extras_require"][extra].splitlines()
        asked = {line for line in lines if line and not line.startswith("#")}
        assert set(packages.replace("'", "").split()) == asked
