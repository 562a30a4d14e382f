"""Tests that run in a second pytest process are reported one by one."""

import re
from pathlib import Path

import pytest

from ..support import jobs

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "feature_programs" / "own_process.py"
BESIDE = PROGRAM.with_name("beside_own_process.py")
ELSEWHERE = ROOT / "tests" / "repository" / "test_parts.py"


def run(*options, tests=(PROGRAM,)):
    command = ["-m", "pytest", "-rA", f"-c{ROOT / 'setup.cfg'}", f"--rootdir={ROOT}"]
    command += [f"-pno:{each}" for each in ("cacheprovider", "xdist", "randomly")]
    environ = {"OF_THE_FIRST_PROCESS": "1"}
    return jobs.run(*command, *options, *tests, status=None, **environ).stdout


@pytest.fixture(scope="module")
def output():
    return run()


OUTCOMES = (
    ("PASSED", "test_passes"),
    ("FAILED", "test_fails"),
    ("SKIPPED", "for a reason"),
    ("ERROR", "test_fails_at_its_end"),
    ("FAILED", r"test_exits\[5\]"),
    ("FAILED", "test_comes_after"),
)


@pytest.mark.not_in_gate
def test_outcome(output):
    for outcome, test in OUTCOMES:
        assert re.search(rf"^{outcome} .*{test}( |$)", output, re.M), output


def test_a_process_that_exits_is_named_with_its_last_words(output):
    assert "own_process.py exited with status 5 before it had run test_exits" in output
    assert "the last words" in output


@pytest.mark.not_in_gate
def test_only_selected_tests_run():
    output = run("-k", "test_passes or test_is_skipped")
    assert "1 passed, 1 skipped, 4 deselected" in output


def test_the_tests_before_and_after_may_be_in_different_folders():
    elsewhere = f"{ELSEWHERE}::test_a_part_that_was_cut_off_has_not_passed"
    output = run(tests=(BESIDE, f"{PROGRAM}::test_passes", elsewhere))
    assert "3 passed" in output, output
    assert "error" not in output, output
