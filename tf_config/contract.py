"""What the launcher and the library agree on.

`launch` starts programs that use `tfdist`, and neither imports the other. Whatever one
side writes and the other reads is defined here, once: environment variables, exit
statuses, what a program reports over a pipe, and the names that cross the boundary.
Changing a value here breaks jobs that mix two versions.
"""

import json
from dataclasses import dataclass

# Environment variables that the launcher sets and a program reads.

TF_CONFIG = "TF_CONFIG"
"""The cluster, and this process's task in it, as JSON. TensorFlow reads it too."""

CHECKPOINT_DIR = "TFDIST_CHECKPOINT_DIR"
"""The directory of the checkpoints that `fit` resumes from, as an absolute path."""

STALL_TIMEOUT = "TFDIST_STALL_TIMEOUT"
"""Seconds that a task may be silent, or a step or a batch may take."""

REPORT_FD = "LAUNCH_REPORT_FD"
"""The file descriptor, as a decimal number, that the chief writes its reports to.

It is set only if the launcher can restart tasks: a program takes it as a promise that a
task it calls stalled, and a program that exits with `EXIT_RESTART`, will be restarted.
"""

PROGRESS = "LAUNCH_PROGRESS"
"""The file in which a program under `launch.chaos` records its steps and its result."""

# Exit statuses, in addition to the script's own. A shell reports a process that was
# killed by signal n as 128 + n, and so does the launcher.

EXIT_USAGE = 2
"""The command line or the cluster is wrong: running it again cannot help."""

EXIT_STALLED = 69
"""The chief waited too long, where no exception could reach it (EX_UNAVAILABLE)."""

EXIT_RESTART = 75
"""The program asks to be restarted (EX_TEMPFAIL of sysexits.h)."""

# What the launcher runs on behalf of the library, with `python -m`.

SERVER_MODULE = "tfdist.server"
"""What a ps or a worker runs under a coordinator."""

CHECKPOINT_MODULE = "tfdist.checkpoint"
"""Checks the checkpoints in a directory; exits with 0 if they are intact."""

ESTIMATOR_MODULE = "tfdist.estimator"
"""A script that imports it runs in every task."""

# What a task publishes in its TensorFlow server, where `launch.doctor` reads it.

STATUS_CONTAINER = "tfdist"
"""The resource container of the variable that holds a task's TF_CONFIG."""

STATUS_VARIABLE = "tf_config"
"""The name of that variable: a scalar string, on the CPU of the task."""

# Files that the launcher looks for.

CHECKPOINT_PREFIX = "checkpoint-"
"""A checkpoint is a directory with this prefix, then its number in 8 digits."""

# What the chief reports over `REPORT_FD`.

TRAINING = "training"
"""The event of the first step that finished after a start."""

STALLED = "stalled"
"""The event of a stall: the launcher is asked to kill and restart `tasks`."""


@dataclass(frozen=True)
class Report:
    r"""One report from the chief to the launcher, a line of JSON.

    Attributes:
        event: `TRAINING` or `STALLED`. A reader ignores events it does not know.
        tasks: The tasks to restart, such as `ps:0`.
        why: What the chief saw, for the log.

    >>> Report(TRAINING).to_line()
    '{"event": "training"}\n'
    >>> Report.from_line('{"event": "stalled", "tasks": ["ps:0"], "why": "silent"}')
    Report(event='stalled', tasks=('ps:0',), why='silent')
    """

    event: str
    tasks: tuple[str, ...] = ()
    why: str = ""

    def to_line(self) -> str:
        """Returns the report as one line, with its newline."""
        value: dict[str, object] = {"event": self.event}
        if self.tasks:
            value["tasks"] = list(self.tasks)
        if self.why:
            value["why"] = self.why
        return json.dumps(value) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "Report | None":
        """Reads a line that `to_line` wrote; None if it is not a report.

        The pipe is inherited by whatever the chief starts, so a line can be anything.
        """
        try:
            value = json.loads(line)
            tasks = tuple(map(str, value.get("tasks", ())))
            return cls(str(value["event"]), tasks, str(value.get("why", "")))
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return None
