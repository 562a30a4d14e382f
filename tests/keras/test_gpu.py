"""On a machine with a GPU: what runs on CPUs elsewhere runs on its logical devices."""

import shutil

import pytest

from ..conftest import PROGRAMS
from ..parameter_server import test_replicas_cluster
from ..support import jobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("nvidia-smi"), reason="needs an NVIDIA GPU"),
]


def run(case):
    # Without XLA and TF32, which Keras and TensorFlow choose for one GPU by themselves.
    exact = {"TF_DETERMINISTIC_OPS": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    jobs.run(PROGRAMS / "on_gpus.py", case, **exact)


@pytest.mark.parametrize(
    "case",
    [
        "chain",
        "with_skips",
        "transformer",
        "replicas",
        "without_waiting",
        "mirrored_ring",
    ],
)
def test_trains_as_one_device(case):
    run(case)


@pytest.mark.parametrize("policy", ["asynchronous", "rounds", "changed"])
def test_every_gpu_of_a_worker_computes_steps(
    run_program, tmp_path, policy, monkeypatch
):
    monkeypatch.setenv("TEST_DEVICES", "GPU")
    found, placed = test_replicas_cluster.train(
        run_program, tmp_path, policy, "arrays", "none", "2", "GPU"
    )
    assert found["replicas"] == ["0 GPU:0", "0 GPU:1", "1 GPU:0", "1 GPU:1"]
    assert placed == {(worker, f"GPU:{gpu}") for worker in "01" for gpu in (0, 1)}
    assert min(found["counts"]) > 0
    assert sum(found["counts"]) == found["asked"]
