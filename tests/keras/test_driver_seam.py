"""Toy strategies train a Keras model through the driver seam alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from ..support.jobs import launch

TOYS = Path(__file__).parent / "toy_strategies"
EPOCHS = 8
TRUTH = [1.0, -2.0, 3.0, 0.5, 0.0]
STEPS, TASKS = 8 * 256 // 32, 2

pytestmark = pytest.mark.cluster


def train(name, directory, *flags):
    options = (*flags, "--num_workers=2", f"--log_dir={directory}/logs")
    launch(*options, TOYS / "train.py", name, directory)
    found = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    for each in found:
        weights = np.concatenate(each["weights"])
        np.testing.assert_allclose(weights, TRUTH, atol=0.3)
    return found


def test_steps_on_ps_workers(tmp_path):
    (chief,) = train("on_ps", tmp_path, "--num_ps=1")
    assert sum(chief["proof"]) == STEPS
    assert len(chief["proof"]) == TASKS


def test_steps_in_unison(tmp_path):
    found = train("in_unison", tmp_path, "--num_ps=0")
    assert [each["proof"] for each in found] == [[TASKS, STEPS // TASKS]] * TASKS
    assert found[0]["weights"] == found[1]["weights"]


def test_local_steps_then_averages(tmp_path):
    found = train("local_steps", tmp_path, "--num_ps=0")
    for each in found:
        # Each task took half of the steps, and had a model of its own in between.
        assert len(each["proof"]) == STEPS // TASKS // 4
        assert min(each["proof"]) > 0
    assert found[0]["weights"] == found[1]["weights"]


@pytest.mark.parametrize("name", ["on_ps", "in_unison", "local_steps"])
def test_a_toy_is_short(name):
    assert len((TOYS / f"{name}.py").read_text().splitlines()) <= 60
