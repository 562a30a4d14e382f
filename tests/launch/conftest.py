"""What each test of launching finds: no engine around it, and no jobs of others."""

import os
from pathlib import Path

import pytest

from launch.engines import kubernetes_pods


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Takes a test out of pods and allocations, and gives it records of its own."""
    for name in [*os.environ]:
        if name.startswith("SLURM_") or name == kubernetes_pods.JOB_VARIABLE:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory of its own, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
