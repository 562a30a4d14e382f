"""Estimators in one process, which has to be their own.

A process that is the chief of a cluster, as that of the feature tests is, has no devices
under the names that a session looks for.
"""

import pytest


@pytest.mark.parametrize(
    "cases",
    ["estimator_cases.py", "estimator_docs_cases.py", "estimator_strategy_cases.py"],
)
def test_in_a_process_of_its_own(run_cases, cases):
    run_cases(cases)
