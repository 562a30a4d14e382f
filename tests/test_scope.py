"""Each strategy's messages for objects created outside its scope, as in docs/scope.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(__file__).with_name("scope_cases.py")
PAGE = (ROOT / "docs" / "scope.md").read_text()
LAUNCH = {
    "ParameterServerStrategy": ["--num_ps=2", "--num_workers=2"],
    "RingStrategy": ["--num_ps=0", "--num_workers=2", "--program=coordinator"],
    "MultiWorkerMirroredStrategy": ["--num_ps=0", "--num_workers=2"],
}
TIMEOUT = 240.0  # seconds
CASES = {
    "the model, or `load_model`": ["model_outside", "load_outside"],
    "the optimizer, or `model.compile`": ["optimizer_outside", "compile_outside"],
    "a metric": ["metric_outside"],
    "a layer of the model, once it is built": ["layer_outside"],
    "a variable that a `train_step` uses": ["variable_in_a_step"],
    "a layer that is adapted": ["adapted_outside"],
    "a lookup layer": ["lookup_outside"],
    "a loop of your own, without `strategy.run`": ["loop_outside", "loop_inside"],
}


def page_rows():
    """The second table's rows: what is outside, and what each strategy says."""
    header, *rows = re.findall(
        r"^\| (.*) \|$", PAGE.partition("## Errors and warnings")[2], re.M
    )
    strategies = re.findall(r"`(\w+)`", header)
    cells = [row.split(" | ") for row in rows[1:]]
    return {what: dict(zip(strategies, said, strict=True)) for what, *said in cells}


def words(cell):
    """What the page's note says that a cell refers to; the names in it are examples."""
    number = re.search(r"\d", cell)[0]
    note = re.search(rf"^{number}\. `(.*)`$", PAGE, re.M)[1]
    return re.sub(r"scope: [^.]*\.", "scope: ", note).split("scope: ")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each strategy says of each case; a job for each strategy, once."""
    found = {}

    def by(strategy):
        if strategy not in found:
            directory = tmp_path_factory.mktemp(strategy)
            found[strategy] = run(strategy, directory)
        return found[strategy]

    return by


def run(strategy, directory):
    command = [sys.executable, "-m", "launch.local", *LAUNCH[strategy]]
    command += [f"--log_dir={directory}/logs", PROGRAM, strategy]
    done = subprocess.run(
        [*command, directory / "said.json"],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads((directory / "said.json").read_text())


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", LAUNCH)
@pytest.mark.parametrize("what", CASES)
def test_what_is_outside_of_the_scope(said, what, strategy):
    cell = page_rows()[what][strategy]
    for case in CASES[what]:
        text = said(strategy)[case]
        if cell == "-":
            assert text == ""
        else:
            assert ("Error: " in text) == cell.startswith("error")
            for part in words(cell):
                assert part.strip() in text


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", LAUNCH)
def test_a_whole_script_may_be_in_the_scope(said, strategy):
    assert said(strategy)["all_in_the_scope"] == ""


def test_the_page_has_these_rows():
    assert list(page_rows()) == list(CASES)
