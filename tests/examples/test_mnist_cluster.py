"""The command of `make mnist`, on a part of the images."""

import re
import subprocess
from pathlib import Path

import pytest

from ..support.jobs import ROOT, launch, with_environment

EXAMPLE = ROOT / "examples" / "mnist_cnn.py"


def run(tmp_path: Path, *flags: str, status: int = 0) -> subprocess.CompletedProcess:
    return launch(
        *("--num_ps=2", "--num_workers=2", f"--log_dir={tmp_path / 'logs'}"),
        *(EXAMPLE, "--train_examples=512", "--batch_size=32", *flags),
        status=status,
        # Inherited by every process of the run.
        TFDIST_TEST_RUN=str(tmp_path),
    )


@pytest.mark.cluster
def test_five_processes_train_and_report(tmp_path):
    saved = tmp_path / "mnist.keras"
    done = run(tmp_path, "--epochs=2", "--min_accuracy=0.3", f"--save_path={saved}")
    output = done.stdout
    assert float(re.search(r"Test accuracy: ([\d.]+)", output)[1]) >= 0.3
    # Where every variable lives: kernels and their slots on both ps.
    placed = re.findall(r"│ ([01])  │ (\S+)", output)
    assert {ps for ps, _ in placed} == {"0", "1"}
    assert any(name.endswith("conv2d/kernel") for _, name in placed)
    assert any(name.endswith("kernel_momentum") for _, name in placed)
    # The steps that each worker ran: 2 epochs of 16 batches.
    steps = [int(n) for n in re.findall(r"│ [01]      │ +(\d+) │", output)]
    assert len(steps) == 2
    assert sum(steps) == 32
    for part in ("data", "build", "fit", "evaluate"):
        assert re.search(rf"│ {part} +│ +[\d.]+ │", output), part
    assert saved.exists()
    logs = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert [name.split(".")[0] for name in logs] == [
        *("chief", "fork-server", "ps-0", "ps-1", "worker-0", "worker-1")
    ]
    assert with_environment("TFDIST_TEST_RUN", str(tmp_path)) == []


@pytest.mark.cluster
def test_a_run_that_did_not_train_fails(tmp_path):
    flags = ("--epochs=1", "--learning_rate=0", "--min_accuracy=0.9")
    done = run(tmp_path, *flags, status=1)
    assert "below --min_accuracy=0.9" in done.stdout + done.stderr
