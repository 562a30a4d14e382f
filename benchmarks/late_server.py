"""A server that comes late: once its job has reported a step.

    python benchmarks/late_server.py STEP

It takes the place of `python -m tfdist.server` in a job of `launch.chaos`.
"""

import os
import sys
import time

from launch.fault import progress
from tf_config import contract
from tfdist import server

PAUSE = 0.1  # seconds


def main(step: int) -> int:
    """Waits, and serves until it is killed."""
    while not is_reported(step):
        time.sleep(PAUSE)
    return server.main()


def is_reported(step: int) -> bool:
    """Whether the job has come this far."""
    return progress.read(os.environ[contract.PROGRESS]).furthest >= step


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
