"""What a release says of itself: its version, its Pythons, its extras."""

import ast
import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRA = re.compile(r"pip install (.+?) \(the extra `(\w+)`\)")


@pytest.fixture(scope="module")
def setup():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


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
    assert {extra for _, extra in found} >= {"networkx", "privacy", "flower", "ray"}
    for packages, extra in found:
        lines = setup["options.extras_require"][extra].splitlines()
        asked = {line for line in lines if line and not line.startswith("#")}
        assert set(packages.replace("'", "").split()) == asked
