"""A worker that outlived a ps reaches the new one before the first step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.addresses import free_addresses
from ..support.deadline import PROGRAM_DEADLINE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.cluster
def test_a_worker_reaches_a_ps_that_was_away():
    ports = [address.rpartition(":")[2] for address in free_addresses(2)]
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "programs" / "reach_after_loss.py", *ports],
        env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
        capture_output=True,
        text=True,
        timeout=PROGRAM_DEADLINE,
    )
    assert done.stdout.count("a step failed without its ps") == 5, done.stderr
    assert "the second program has run a step" in done.stdout, done.stderr
