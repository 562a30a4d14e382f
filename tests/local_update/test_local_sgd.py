"""The example of local updates, on a real cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.deadline import PROGRAM_DEADLINE, STARTUP_FLAG

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("mlxtend")

ROOT = Path(__file__).parents[2]
WEIGHTS = 62_346


@pytest.mark.cluster
def test_an_epoch_of_local_steps_costs_five_means_of_a_byte_per_weight(tmp_path):
    command = [sys.executable, "-m", "launch.local", "--num_ps=0", "--num_workers=2"]
    command += [f"--log_dir={tmp_path}", STARTUP_FLAG]
    flags = ["--epochs=1", "--local_steps=10", "--outer_learning_rate=0.7"]
    flags += ["--wire_dtype=int8"]
    done = subprocess.run(
        [*command, ROOT / "examples" / "local_sgd.py", *flags],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=PROGRAM_DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (accuracy,) = re.findall(r"Test accuracy: ([\d.]+)", done.stdout)
    (megabytes,) = re.findall(r"Received: ([\d.]+) MB", done.stdout)
    assert float(accuracy) > 0.3  # at random: 0.1
    assert float(megabytes) == pytest.approx(5 * WEIGHTS / 1e6, rel=0.02)
