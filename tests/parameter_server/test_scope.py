"""Each strategy's messages for objects created outside its scope, as in docs/custom.md."""

import contextlib
import re
from pathlib import Path

import pytest
from case_jobs import Job

from . import scope_cases as cases

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "custom.md").read_text()
LAUNCH = {
    "RingStrategy": ["--num_workers=2", "--program=coordinator"],
    "MultiWorkerMirroredStrategy": ["--num_workers=2"],
}
STRATEGIES = ["ParameterServerStrategy", *LAUNCH]
CASES = {
    "the model, or `load_model`": ["model_outside", "load_outside"],
    "the model, compiled inside": ["model_outside_compiled_inside"],
    "the optimizer, or `model.compile`": ["optimizer_outside", "compile_outside"],
    "a metric": ["metric_outside"],
    "a layer of the model, once it is built": ["layer_outside"],
    "a variable that a `train_step` uses": ["variable_in_a_step"],
    "a layer that is adapted": ["adapted_outside"],
    "a lookup layer": ["lookup_outside"],
    "a loop of your own, without `strategy.run`": ["loop_outside", "loop_inside"],
}


def page_rows():
    """The rows of the second table: what is outside, and each strategy's message."""
    header, *rows = re.findall(
        r"^\| (.*) \|$", PAGE.partition("## Errors and warnings")[2], re.M
    )
    strategies = re.findall(r"`(\w+)`", header)
    cells = [row.split(" | ") for row in rows[1:]]
    return {what: dict(zip(strategies, said, strict=True)) for what, *said in cells}


def words(cell):
    """The message in the note that a cell refers to; names in it are examples."""
    number = re.search(r"\d", cell)[0]
    note = re.search(rf"^{number}\. `(.*?)`$", PAGE, re.M | re.S)[1]
    return re.sub(r"scope: [^.]*\.", "scope: ", " ".join(note.split())).split("scope: ")


@pytest.fixture(scope="module")
def said(request, tmp_path_factory):
    """The message of each strategy in a case. The ps are those that the tests share."""
    with contextlib.ExitStack() as stack:
        jobs = {}

        def by(kind, case):
            if kind == "ParameterServerStrategy":
                return cases.CASES[case](request.getfixturevalue("strategy"))["said"]
            if kind not in jobs:
                directory = tmp_path_factory.mktemp(kind)
                tasks = 1 if kind == "RingStrategy" else 2
                job = Job(
                    cases.__file__, directory, *LAUNCH[kind], tasks=tasks, STRATEGY=kind
                )
                jobs[kind] = stack.enter_context(job)
            first, *others = jobs[kind][case]
            # Where all is allowed, all workers have one model.
            if not first["said"]:
                assert all(each == first for each in others)
            return first["said"]

        yield by


@pytest.mark.cluster
@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("what", CASES)
def test_objects_outside_the_scope(said, what, kind):
    cell = page_rows()[what][kind]
    for case in CASES[what]:
        text = said(kind, case)
        if cell == "-":
            assert text == ""
        else:
            assert ("Error: " in text) == cell.startswith("error")
            for part in words(cell):
                assert part.strip() in text


@pytest.mark.cluster
@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_whole_script_may_be_in_the_scope(said, kind):
    assert said(kind, "all_in_the_scope") == ""


def test_the_page_has_these_rows():
    assert list(page_rows()) == list(CASES)
