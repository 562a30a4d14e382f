"""A worker that outlived a ps reaches the new one before the first step."""

import pytest

from ..support.addresses import free_addresses
from ..support.jobs import ROOT, run


@pytest.mark.cluster
def test_a_worker_reaches_a_ps_that_was_away():
    ports = [address.rpartition(":")[2] for address in free_addresses(2)]
    program = ROOT / "tests" / "programs" / "reach_after_loss.py"
    done = run(program, *ports, status=None)
    assert done.stdout.count("a step failed without its ps") == 5, done.stderr
    assert "the second program has run a step" in done.stdout, done.stderr
