"""A server that comes late: once its job has reported a step, or once a file is there.

    python benchmarks/late_server.py STEP_OR_FILE

It takes the place of `python -m tfdist.server` in a job of `launch.chaos`.
"""

import os
import sys
import time

from launch.fault import progress
from tf_config import contract
from tfdist import server

PAUSE = 0.1  # seconds


def main(awaited: str) -> int:
    """Waits, and serves until it is killed."""
    while not is_time(awaited):
        time.sleep(PAUSE)
    return server.main()


def is_time(awaited: str) -> bool:
    """Whether the step was reported, or the file is there."""
    if not awaited.isdecimal():
        return os.path.exists(awaited)
    return progress.read(os.environ[contract.PROGRESS]).furthest >= int(awaited)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
