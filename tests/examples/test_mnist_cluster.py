"""The command of `make mnist`, on a part of the images."""

import re

import pytest

from ..support.jobs import ROOT, launch, with_environment

EXAMPLE = ROOT / "examples" / "mnist_cnn.py"


@pytest.mark.in_gate
@pytest.mark.cluster
def test_five_processes_train_and_report(tmp_path):
    saved = tmp_path / "mnist.keras"
    output = launch(
        *("--num_ps=2", "--num_workers=2", f"--log_dir={tmp_path / 'logs'}"),
        *(EXAMPLE, "--train_examples=512", "--batch_size=32", "--epochs=2"),
        *("--min_accuracy=0.3", f"--save_path={saved}"),
        # Inherited by every process of the run.
        TFDIST_TEST_RUN=str(tmp_path),
    ).stdout
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
