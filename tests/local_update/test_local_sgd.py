"""The example of local updates, on a real cluster."""

import re

import pytest

from ..support.jobs import ROOT, launch

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("mlxtend")

WEIGHTS = 62_346


@pytest.mark.cluster
def test_an_epoch_of_local_steps_costs_five_means_of_a_byte_per_weight(tmp_path):
    done = launch(
        *("--num_ps=0", "--num_workers=2", f"--log_dir={tmp_path}"),
        *(ROOT / "examples" / "local_sgd.py", "--epochs=1", "--local_steps=10"),
        *("--outer_learning_rate=0.7", "--wire_dtype=int8"),
        TF_CPP_MIN_LOG_LEVEL="2",
    )
    (accuracy,) = re.findall(r"Test accuracy: ([\d.]+)", done.stdout)
    (megabytes,) = re.findall(r"Received: ([\d.]+) MB", done.stdout)
    assert float(accuracy) > 0.3  # at random: 0.1
    assert float(megabytes) == pytest.approx(5 * WEIGHTS / 1e6, rel=0.02)
