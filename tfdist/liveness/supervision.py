"""What the chief tells the process that supervises its cluster, if there is one.

A launcher that can start tasks again passes a pipe, and the number of its descriptor in
the environment variable LAUNCH_REPORT_FD. Each report is a line of JSON:

    {"event": "training"}                       the first step has finished
    {"event": "stalled", "tasks": ["ps:0"]}     end these, and start them again
"""

import contextlib
import json
import os
from typing import Any

REPORT_FD = "LAUNCH_REPORT_FD"

START_AGAIN = 75
"""The exit status that asks to start the program again: EX_TEMPFAIL of sysexits.h."""


def is_supervised() -> bool:
    """Whether there is a supervisor."""
    return os.environ.get(REPORT_FD, "").isdigit()


def tell(event: str, **details: Any) -> None:
    """Reports an event, where somebody listens."""
    if is_supervised():
        line = json.dumps({"event": event, **details}) + "\n"
        # The supervisor may be gone, and then so will be this process.
        with contextlib.suppress(OSError):
            os.write(int(os.environ[REPORT_FD]), line.encode())
