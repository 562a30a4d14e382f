"""Report to the launcher, if there is one that can restart tasks.

The launcher passes the file descriptor of a pipe; see `tf_config.contract.Report`.
"""

import contextlib
import os
from collections.abc import Sequence

from tf_config import contract
from tf_config.contract import Report


def is_supervised() -> bool:
    """Returns whether a launcher listens that can restart tasks."""
    return os.environ.get(contract.REPORT_FD, "").isdigit()


def report_training() -> None:
    """Reports that the first step has finished."""
    _report(Report(contract.TRAINING))


def report_stalled(tasks: Sequence[str], why: str) -> None:
    """Asks the launcher to restart tasks, such as `ps:0`; `why` is for its log."""
    _report(Report(contract.STALLED, tuple(tasks), why))


def _report(report: Report) -> None:
    if is_supervised():
        # If the launcher has died, it takes this process with it: nothing to handle.
        with contextlib.suppress(OSError):
            os.write(int(os.environ[contract.REPORT_FD]), report.to_line().encode())
