"""The example of federated learning, as a user starts it."""

import re

import pytest

from ..support.jobs import ROOT, run

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("mlxtend")

PAGE = (ROOT / "docs" / "federated.md").read_text()


@pytest.mark.in_part
@pytest.mark.slow
def test_the_command_of_the_page_learns():
    (command,) = re.findall(r"^python (examples/federated_mnist.py .*)$", PAGE, re.M)
    done = run(*command.split(), "--rounds=2", "--split=iid", cwd=ROOT)
    assert "round 2/2: 5 of 5 clients answered" in done.stdout
    (accuracy,) = re.findall(r"Test accuracy: ([\d.]+)", done.stdout)
    assert float(accuracy) > 0.5  # at random: 0.1


@pytest.mark.slow
def test_flags_that_exclude_each_other_are_an_error_in_one_line():
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    program = "examples/federated_mnist.py"
    done = run(program, "--noise=1", cwd=ROOT, status=1, **quiet)
    assert done.stderr.strip().splitlines()[-1].startswith("noise without a clip")
