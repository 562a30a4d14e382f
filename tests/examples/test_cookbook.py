"""The programs of docs/cookbook.md run, and the page shows them as they are."""

import importlib.util
import re
import shlex

import pytest
from documents import ROOT, blocks

from ..support import jobs

PROGRAMS = ROOT / "examples" / "cookbook"
SHOWN = [block for block in blocks() if block.page.name == "cookbook.md"]
CODE = [block.code for block in SHOWN if block.language == "python"]
STARTED = [
    block.code
    for block in SHOWN
    if block.language == "sh" and "test_cookbook" in block.mark
]
SAID = [block.code for block in SHOWN if block.language == "text"]
NAMES = [shlex.split(each)[-1] for each in STARTED]
NEEDS = {"tuner.py": "keras_tuner"}


def test_the_page_has_each_program_as_it_is():
    assert sorted(NAMES) == sorted(path.name for path in PROGRAMS.glob("*.py"))
    assert [(PROGRAMS / name).read_text() for name in NAMES] == CODE


def without_numbers(text):
    return re.sub(r"\d+(?:\.\d*)?", "#", text)


def accuracies(text):
    return [
        float(each) for each in re.findall(r"(?:seen|alone|layers): ([\d.]+)", text)
    ]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("command", "said"), [*zip(STARTED, SAID, strict=True)], ids=NAMES
)
def test_it_runs_and_says_what_the_page_says(command, said, tmp_path):
    """The numbers may differ, but a model learns."""
    _, _, *flags, name = shlex.split(command)
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    program = tmp_path / name
    program.write_text((PROGRAMS / name).read_text())
    output = jobs.launch(*flags, program, cwd=tmp_path, TF_CPP_MIN_LOG_LEVEL="2").stdout
    lines = without_numbers(output)
    assert [
        line for line in said.splitlines() if without_numbers(line) not in lines
    ] == []
    assert len(accuracies(output)) == len(accuracies(said))
    assert all(each > 0.9 for each in accuracies(output))
