"""What SIGTERM does to a process that is in a `fit` with checkpoints."""

import signal

import pytest

PROGRAM = """
import os, signal, sys
from tfdist.parameter_server.checkpoints.termination import Termination

{before}
with Termination() as termination:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
    print("held back", termination.requested, flush=True)
    {inside}
print("after", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "inside", "status", "shown", "error"),
    [
        ("", "", -signal.SIGTERM, "held back True\n", ""),
        ("", "termination.end()", -signal.SIGTERM, "held back True\n", ""),
        ("", "raise KeyError('mine')", -signal.SIGTERM, "held back True\n", "'mine'"),
        (
            "signal.signal(signal.SIGTERM, lambda *_: print('own'))",
            "",
            0,
            "own\nown\nheld back False\nafter\n",
            "",
        ),
    ],
    ids=["end of fit", "saved", "error", "own handler"],
)
def test_sigterm(run_python, before, inside, status, shown, error):
    done = run_python(PROGRAM.format(before=before, inside=inside))
    assert done.returncode == status, done.stderr
    assert done.stdout == shown
    assert error in done.stderr
