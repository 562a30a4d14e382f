"""Estimators in one process, which has to be their own.

A process that is the chief of a cluster, as that of the feature tests is, has no devices
under the names that a session looks for.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TIMEOUT = 280  # seconds


@pytest.mark.parametrize(
    "cases",
    ["estimator_cases.py", "estimator_docs_cases.py", "estimator_strategy_cases.py"],
)
def test_in_a_process_of_its_own(cases):
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    env.pop("TF_CONFIG", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS / cases],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
