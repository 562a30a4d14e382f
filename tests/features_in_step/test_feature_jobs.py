"""A feature test passes only if all workers report the same outcome."""

from pathlib import Path

import feature_jobs
import psutil
import pytest

from ..support.raising import raises

TESTS = Path(__file__).resolve().parents[1]

PROGRAM = TESTS / "feature_programs" / "outcomes.py"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    found = feature_jobs.run("multi_worker", directory, [str(PROGRAM)], timeout=30.0)
    commands = (" ".join(each.info["cmdline"] or ()) for each in processes())
    assert [command for command in commands if str(directory) in command] == []
    return {test.split("::")[1]: outcome for test, outcome in found.items()}


def processes():
    return psutil.process_iter(["cmdline"])


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("test", "outcome", "words"),
    [
        ("test_passes", "passed", ""),
        ("test_fails_on_one", "failed", "outcome of the workers: ['passed', 'failed']"),
        ("test_passes_after_a_failure", "passed", ""),
        ("test_hangs_on_one", "failed", "no outcome on worker 1"),
        ("test_fails_on_both", "failed", "ValueError: on both"),
        ("test_leaves_other_variables", "failed", "['those of 0', 'those of 1']"),
        ("test_is_skipped", "skipped", ""),
        ("test_passes_at_the_end", "passed", ""),
    ],
)
def test_outcome(outcomes, test, outcome, words):
    found = outcomes[test]
    assert (found.outcome, words in found.words) == (outcome, True), found.words
    assert found.row == ("a row" if test == "test_passes_after_a_failure" else "")


@pytest.mark.cluster
def test_no_test_is_not_a_success(tmp_path):
    with raises(RuntimeError, "multi_worker"):
        feature_jobs.run("multi_worker", tmp_path, [f"{PROGRAM}::test_that_is_not"])
