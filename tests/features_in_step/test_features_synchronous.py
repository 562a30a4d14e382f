"""Each row of the feature table, run on two workers under each synchronous strategy.

The tests of `tests/features` that the rows name run in one job per strategy: see
feature_jobs.py. `-k multi_worker`, or the name of a test, limits the job to those tests.
`make test-all` runs the files where strategies differ most, each under one strategy;
`make features` runs all.
"""

from pathlib import Path

import feature_jobs
import pytest

from .. import feature_table

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

IN_PART = {
    "multi_worker": {"test_steps.py", "test_saving.py"},
    "ring": {"test_refusals.py"},
}


def marks(strategy, row):
    module = row.test.split("::")[0]
    return [] if module in IN_PART[strategy] else [pytest.mark.thorough]


ROWS = [
    pytest.param(strategy, row, id=f"{strategy}-{row.test}", marks=marks(strategy, row))
    for strategy in IN_PART
    for part in feature_table.parts()
    for row in part.rows
    if row.cells[strategy].works != "-"
]


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The outcomes of the tests by strategy and node id; a job runs on first use."""
    found = {}

    def of(strategy):
        if strategy not in found:
            directory = tmp_path_factory.mktemp(strategy)
            found[strategy] = feature_jobs.run(strategy, directory, tests(strategy))
        return found[strategy]

    def tests(strategy):
        chosen = [
            item.callspec.params["row"].test.split("[")[0]
            for item in request.session.items
            if item.path == Path(__file__)
            and item.callspec.params["strategy"] == strategy
        ]
        return [f"{feature_jobs.FEATURES}/{test}" for test in dict.fromkeys(chosen)]

    return of


@pytest.mark.parametrize(("strategy", "row"), ROWS)
def test_row(outcomes, strategy, row):
    """All tests of the row pass; they assert what its cell says."""
    of_row = [each for each in outcomes(strategy).values() if each.row == row.feature]
    assert of_row, f"{row.test} did not run"
    words = [each.words for each in of_row if each.outcome == "failed"]
    assert not words, "\n".join(words)
    # On all workers, for want of something that this version of Keras has not.
    if all(each.outcome == "skipped" for each in of_row):
        pytest.skip("skipped under the strategy")
