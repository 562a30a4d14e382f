"""Report to the launcher, if there is one that can restart tasks.

The launcher passes the file descriptor of a pipe; see `tf_config.contract.Report`.
"""

import contextlib
import os
import select
from collections.abc import Mapping, Sequence

from tf_config import contract
from tf_config.contract import Report


def is_supervised() -> bool:
    """Returns True if a launcher listens that can restart tasks."""
    return os.environ.get(contract.REPORT_FD, "").isdigit()


def report_training() -> None:
    """Reports that the first step has finished."""
    _report(Report(contract.TRAINING))


def report_stalled(tasks: Sequence[str], why: str) -> None:
    """Asks the launcher to restart tasks, such as `ps:0`; `why` is for its log."""
    _report(Report(contract.STALLED, tuple(tasks), why))


def report_progress(numbers: Mapping[str, float]) -> None:
    """Reports how far training has come; see `tf_config.contract.STEPS_TAKEN`."""
    # A launcher may be stopped, or wait for its terminal, and training continues: what does
    # not fit into the pipe at once is not written.
    poll = select.poll()
    poll.register(int(os.environ[contract.REPORT_FD]), select.POLLOUT)
    if poll.poll(0):
        _report(Report(contract.STEPS_TAKEN, numbers=numbers))


def _report(report: Report) -> None:
    if is_supervised():
        # If the launcher has died, it takes this process with it: nothing to handle.
        with contextlib.suppress(OSError):
            os.write(int(os.environ[contract.REPORT_FD]), report.to_line().encode())
