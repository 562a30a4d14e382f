"""The contract between the launcher and the library.

`launch` starts programs that use `tfdist`, and neither imports the other. Whatever one
side writes and the other reads is defined here, once: environment variables, exit
statuses, what a program reports over a pipe, and the names that cross the boundary.
Changing a value here breaks jobs that mix two versions.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Environment variables that the launcher sets and a program reads.

TF_CONFIG = "TF_CONFIG"
"""The cluster, and this process's task in it, as JSON. TensorFlow reads it too."""

CHECKPOINT_DIR = "TFDIST_CHECKPOINT_DIR"
"""The directory of the checkpoints that `fit` resumes from, as an absolute path."""

STALL_TIMEOUT = "TFDIST_STALL_TIMEOUT"
"""Seconds that a task may be silent, or a step or a batch may take."""

MIN_WORKERS = "TFDIST_MIN_WORKERS"
"""The number of workers that `fit` needs to start and to go on, in decimal digits."""

IMPORTS = "TFDIST_IMPORTS"
"""The modules that a ps or a worker imports before it serves, separated by commas.

They register operations that the chief's program uses.
"""

REPORT_FD = "LAUNCH_REPORT_FD"
"""The file descriptor, as a decimal number, that the chief writes its reports to.

It is set only if the launcher can restart tasks: a program takes it as a promise that a
task it calls stalled, and a program that exits with `EXIT_RESTART`, will be restarted.
"""

PROGRESS = "LAUNCH_PROGRESS"
"""The file in which a program under `launch.chaos` records its steps and its result."""

HISTORY = "TFDIST_HISTORY"
"""The file, as an absolute path, to which `fit` appends an `EpochRecord` per epoch."""

TIMELINE = "TFDIST_TIMELINE"
"""The file, as an absolute path, to which `fit` writes when each step did what."""

COMMAND = "TFDIST_COMMAND"
"""The command that started the program: a JSON list of two texts for a shell.

Flags that describe the cluster belong between them: `commands.starting` writes them there.
"""

CONSISTENCY = "TFDIST_CONSISTENCY"
"""The policy of a `ParameterServerStrategy` that is given none, as text.

It is `ASYNCHRONOUS`; `BOUNDED`, a colon and the bound; or `SYNCHRONOUS`, alone or with a
colon and the number of backup workers.
"""

ASYNCHRONOUS, BOUNDED, SYNCHRONOUS = "asynchronous", "bounded", "synchronous"

# Exit statuses, in addition to the script's own. A shell reports a process that was
# killed by signal n as 128 + n, and so does the launcher.

EXIT_USAGE = 2
"""The command line or the cluster is wrong: running it again cannot help."""

EXIT_STALLED = 69
"""The chief waited too long, where no exception could reach it (EX_UNAVAILABLE)."""

EXIT_RESTART = 75
"""The program asks to be restarted (EX_TEMPFAIL of sysexits.h)."""

# Modules that the launcher runs on behalf of the library, with `python -m`.

SERVER_MODULE = "tfdist.server"
"""The program of a ps or a worker under a coordinator."""

CHECKPOINT_MODULE = "tfdist.checkpoint"
"""Checks the checkpoints in a directory; exits with 0 if they are intact."""

ESTIMATOR_MODULE = "tfdist.estimator"
"""A script that imports it runs in every task."""

FORK_SERVER_MODULE = "tfdist.cluster.fork_server"
"""Imports TensorFlow once, and forks tasks that need not import it again.

Its only argument is the number of a socket of `socket.socketpair`. It answers once when
it is ready, and then once per `ForkRequest`, until the socket closes.
"""

READ_LATE = frozenset(
    {
        TF_CONFIG,
        CHECKPOINT_DIR,
        STALL_TIMEOUT,
        MIN_WORKERS,
        IMPORTS,
        REPORT_FD,
        PROGRESS,
        HISTORY,
        CONSISTENCY,
        TIMELINE,
        COMMAND,
        "CUDA_VISIBLE_DEVICES",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "http_proxy",
        "https_proxy",
        "grpc_proxy",
        "no_proxy",
        "no_grpc_proxy",
    }
)
"""Environment variables that no import reads.

A forked task may have its own values of these. Any other variable may be read while
TensorFlow, Keras or a package that they use is imported.
"""


def is_policy(text: str) -> bool:
    """Returns True if a text is a value of `CONSISTENCY`.

    >>> [is_policy(text) for text in ("bounded:4", "bounded", "synchronous:1", "ssp")]
    [True, False, True, False]
    """
    name, colon, argument = text.partition(":")
    if not colon:
        return text in (ASYNCHRONOUS, SYNCHRONOUS)
    return name in (BOUNDED, SYNCHRONOUS) and argument.isdecimal()


def unknown_policy(text: str) -> str:
    """Returns the message of the error about a text that `is_policy` rejects."""
    return (
        f"a policy is {ASYNCHRONOUS}, {BOUNDED}:STALENESS, {SYNCHRONOUS} or "
        f"{SYNCHRONOUS}:BACKUPS, with whole numbers from 0; received {text!r}"
    )


# Values that a task publishes in its TensorFlow server for `launch.doctor`.

STATUS_CONTAINER = "tfdist"
"""The resource container of the variable that holds a task's TF_CONFIG."""

STATUS_VARIABLE = "tf_config"
"""The name of that variable: a scalar string, on the CPU of the task."""

# Files that the launcher looks for.

CHECKPOINT_PREFIX = "checkpoint-"
"""A checkpoint is a directory with this prefix, then its number in 8 digits."""

# Reports of the chief over `REPORT_FD`.

TRAINING = "training"
"""The event of the first step that finished after a start."""

STALLED = "stalled"
"""The event of a stall: the launcher is asked to kill and restart `tasks`."""

STEPS_TAKEN = "steps_taken"
"""The event of `numbers` about the steps since the last one, a second or more ago.

They are `steps`, and in how many `seconds`; of a `ParameterServerStrategy`, how many functions
each worker has finished, by its name such as `worker:0`, and the mean `staleness` of the steps
of the last epoch, if it was measured.
"""


@dataclass(frozen=True)
class Report:
    r"""One report from the chief to the launcher, a line of JSON.

    Attributes:
        event: `TRAINING`, `STALLED` or `STEPS_TAKEN`. A reader ignores events that it
            does not know.
        tasks: The tasks to restart, such as `ps:0`.
        why: The chief's reason, for the log.
        numbers: How far training has come.

    >>> Report(TRAINING).to_line()
    '{"event": "training"}\n'
    >>> Report.from_line('{"event": "stalled", "tasks": ["ps:0"], "why": "silent"}')
    Report(event='stalled', tasks=('ps:0',), why='silent', numbers={})
    """

    event: str
    tasks: tuple[str, ...] = ()
    why: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    def to_line(self) -> str:
        """Returns the report as one line, with its newline."""
        value: dict[str, object] = {"event": self.event}
        if self.tasks:
            value["tasks"] = list(self.tasks)
        if self.why:
            value["why"] = self.why
        if self.numbers:
            value["numbers"] = dict(self.numbers)
        return json.dumps(value) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "Report | None":
        """Reads a line that `to_line` wrote; None if it is not a report.

        The pipe is inherited by whatever the chief starts, so a line can be anything.
        """
        try:
            value = json.loads(line)
            tasks = tuple(map(str, value.get("tasks", ())))
            given = value.get("numbers", {}).items()
            numbers = {str(name): float(number) for name, number in given}
            return cls(str(value["event"]), tasks, str(value.get("why", "")), numbers)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True)
class EpochRecord:
    """One epoch of `fit`, a line of JSON in the file `HISTORY`.

    Attributes:
        epoch: Its number, from 0 in each call of `fit`.
        began: The time of its beginning, in seconds since 1970.
        ended: The time at which its last step had finished, before any validation.
        steps: How many steps it had.
        messages: In how many messages the chief asked for them; 0 if it asks for none.
        policy: The policy under which they ran, for a reader; '' if there is none.
        logs: Keras's logs of the epoch, those that are numbers.
    """

    epoch: int
    began: float
    ended: float
    steps: int
    messages: int = 0
    policy: str = ""
    logs: Mapping[str, float] = field(default_factory=dict)

    def to_line(self) -> str:
        """Returns the record as one line, with its newline."""
        return json.dumps({**vars(self), "logs": dict(self.logs)}) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "EpochRecord":
        """Reads a line that `to_line` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class ForkRequest:
    """A request to the fork server, as a line of JSON.

    The files travel with its first byte, by SCM_RIGHTS, in the order of `fds`. One more
    comes last, the end of a pipe: the task begins once a byte is there. If the pipe closes
    before, the launcher has given it up, and it ends.

    Attributes:
        argv: The command: an interpreter, then a script or `-m` and a module, then the
            arguments.
        env: The whole environment.
        cwd: The working directory.
        fds: The numbers that the files get in the new process: 0, 1 and 2, then others
            that must be free in the fork server.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    fds: tuple[int, ...]

    def to_line(self) -> bytes:
        """Returns the request as one line, with its newline."""
        value = {**vars(self), "env": dict(self.env)}
        return json.dumps(value).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "ForkRequest":
        """Reads a line that `to_line` wrote."""
        value: dict[str, Any] = json.loads(line)
        argv, fds = tuple(value["argv"]), tuple(value["fds"])
        return cls(argv, value["env"], value["cwd"], fds)


@dataclass(frozen=True)
class ForkAnswer:
    """The fork server's answer, a line of JSON.

    Attributes:
        pid: The new process, a child of the process that started the fork server; the
            fork server's own in its first answer.
        problem: Why this cannot be forked; '' if it was.
    """

    pid: int = 0
    problem: str = field(default="", kw_only=True)

    def to_line(self) -> bytes:
        """Returns the answer as one line, with its newline."""
        return json.dumps(vars(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "ForkAnswer":
        """Reads a line that `to_line` wrote."""
        value: dict[str, Any] = json.loads(line)
        return cls(value["pid"], problem=value["problem"])
