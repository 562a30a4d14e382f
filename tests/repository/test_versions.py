"""The versions that docs/versions.md and setup.cfg name are those that were tested."""

import json
from pathlib import Path

import pytest

from ..matrix import plan, results, run, table

ROOT = Path(__file__).resolve().parents[2]

RUNS = results.load()
SETUP = ROOT / "setup.cfg"
BOUNDS = plan.lower_bounds(SETUP)


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def versions(package: str) -> set[str]:
    """The versions that the feature tests ran with."""
    return {each["found"][package] for each in RUNS if each["tests"] != "private"}


def test_the_page_is_what_the_results_make():
    assert table.PATH.read_text() == table.page(RUNS), "run: make matrix MATRIX=--table"


def test_every_recorded_run_passed():
    """A version that fails is fixed, or is below the bounds of setup.cfg."""
    assert {each["failed"] for each in RUNS} == {0}
    assert min(each["passed"] for each in RUNS) > 0


@pytest.mark.parametrize("package", ["tensorflow", "keras", "python"])
def test_the_lowest_version_of_setup_cfg_passed(package):
    tested = min(versions(package), key=plan.as_numbers)
    assert minor(tested) == minor(BOUNDS[package])


def test_each_version_of_the_plan_was_run():
    assert {minor(v) for v in versions("tensorflow")} == set(plan.TENSORFLOWS)
    assert {minor(v) for v in versions("python")} == set(plan.PYTHONS)


def test_the_plan_has_each_version_and_the_lowest_of_all():
    runs = plan.plan(plan.PYTHONS, SETUP)
    assert [r for r in runs if r.tensorflow == "2.18"] == [
        plan.Versions("2.18", "3.11")
    ]
    assert {r.python for r in runs if r.tensorflow == "2.21"} == set(plan.PYTHONS)
    assert runs[-1] == plan.Versions(
        BOUNDS["tensorflow"], BOUNDS["python"], BOUNDS["keras"]
    )
    assert {r.python for r in plan.plan(["3.11"], SETUP)} == {"3.11"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("2.18", "", ""), ["tf2.18-py3.11"]),
        (("2.18", "3.12", ""), ["tf2.18-py3.12"]),
        (("2.16", "", "3.8.0"), ["tf2.16-py3.11-keras3.8.0"]),
    ],
)
def test_what_is_asked_for_is_run(asked, expected):
    chosen = plan.chosen(*asked, at_hand=plan.PYTHONS, setup=SETUP)
    assert [str(each) for each in chosen] == expected


REPORT = """<testsuites><testsuite name="pytest" time="12.4">
<testcase classname="tests.features.test_a" name="test_good" />
<testcase classname="tests.features.test_a" name="test_bad[x]"><failure /></testcase>
<testcase classname="tests.features.test_a" name="test_lost"><error /></testcase>
<testcase classname="tests.features.test_b" name="test_new">
<skipped message="Keras has it since 3.15" /></testcase>
</testsuite></testsuites>"""


def test_a_report_is_read(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    assert run.read(path) == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "seconds": 12,
        "failures": ["test_a.py::test_bad[x]", "test_a.py::test_lost"],
        "skips": ["test_b.py::test_new: Keras has it since 3.15"],
    }


def example(tensorflow, **changed):
    found = {"tensorflow": tensorflow, "keras": "3.15.1", "numpy": "2", "python": "3"}
    outcome = {"passed": 2, "failed": 0, "skipped": 0, "failures": [], "skips": []}
    made = results.entry(
        plan.Versions(tensorflow, "3.11"), found, "all", "abc", "2026-01-01", outcome
    )
    return {**made, **changed}


def test_a_run_replaces_the_one_of_the_same_versions(tmp_path):
    path = tmp_path / "results.json"
    for each in (example("2.9"), example("2.16"), example("2.9", passed=3)):
        results.record(each, path)
    found = [
        (r["found"]["tensorflow"], r["passed"]) for r in json.loads(path.read_text())
    ]
    assert found == [("2.9", 3), ("2.16", 2)]


def test_the_page_says_why_tests_were_skipped():
    skipped = example("2.17", skips=["test_b.py::test_new: Keras has it since 3.15"])
    said = "- Keras has it since 3.15: 1 of `test_b.py` (TensorFlow 2.17 with Keras"
    assert said in table.page([skipped])
