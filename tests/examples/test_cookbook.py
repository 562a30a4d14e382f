"""The programs of docs/cookbook.md run, and the page shows them as they are."""

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
OF_LIBRARIES = {"tuner.py"}
"""Programs that tests/ecosystem runs, where the libraries are that they import."""


def test_the_page_has_each_program_as_it_is():
    assert sorted(NAMES) == sorted(path.name for path in PROGRAMS.glob("*.py"))
    assert [(PROGRAMS / name).read_text() for name in NAMES] == CODE


def without_numbers(text):
    return re.sub(r"\d+(?:\.\d*)?", "#", text)


def accuracies(text):
    return [
        float(each) for each in re.findall(r"(?:seen|alone|layers): ([\d.]+)", text)
    ]


def check(name, folder):
    """The numbers may differ, but a model learns."""
    at = NAMES.index(name)
    _, _, *flags, _ = shlex.split(STARTED[at])
    program = folder / name
    program.write_text((PROGRAMS / name).read_text())
    output = jobs.launch(*flags, program, cwd=folder, TF_CPP_MIN_LOG_LEVEL="2").stdout
    lines = without_numbers(output)
    said = SAID[at].splitlines()
    assert [line for line in said if without_numbers(line) not in lines] == []
    assert len(accuracies(output)) == len(accuracies(SAID[at]))
    assert all(each > 0.9 for each in accuracies(output))


@pytest.mark.cluster
@pytest.mark.parametrize("name", sorted({*NAMES} - OF_LIBRARIES))
def test_it_runs_and_says_what_the_page_says(name, tmp_path):
    check(name, tmp_path)
