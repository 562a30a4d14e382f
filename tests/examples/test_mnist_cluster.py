"""The command of `make mnist`, on a part of the images."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ..support.deadline import PROGRAM_DEADLINE, STARTUP_FLAG

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist_cnn.py"


def run(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            *(sys.executable, "-m", "launch.local", "--num_ps=2", "--num_workers=2"),
            STARTUP_FLAG,
            f"--log_dir={tmp_path / 'logs'}",
            *(str(EXAMPLE), "--train_examples=512", "--batch_size=32", *flags),
        ],
        # Inherited by every process of the run.
        env={**os.environ, "TFDIST_TEST_RUN": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_DEADLINE,
        check=False,
    )


@pytest.mark.cluster
def test_five_processes_train_and_report(tmp_path):
    saved = tmp_path / "mnist.keras"
    done = run(tmp_path, "--epochs=2", "--min_accuracy=0.3", f"--save_path={saved}")
    output = done.stdout
    assert done.returncode == 0, output + done.stderr
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
    assert [p for p in psutil.process_iter() if _belongs_to(p, tmp_path)] == []


@pytest.mark.cluster
def test_a_run_that_did_not_train_fails(tmp_path):
    done = run(tmp_path, "--epochs=1", "--learning_rate=0", "--min_accuracy=0.9")
    assert done.returncode == 1
    assert "below --min_accuracy=0.9" in done.stdout + done.stderr


def _belongs_to(process: psutil.Process, run: Path) -> bool:
    try:
        return process.environ().get("TFDIST_TEST_RUN") == str(run)
    except psutil.Error:
        return False
