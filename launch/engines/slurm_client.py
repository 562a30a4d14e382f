"""Slurm's own commands: sbatch, scontrol and scancel.

Every function raises `EngineError` if Slurm refuses, or its controller does not answer.
"""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from launch.engines.engine import EngineError

PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESIZING"})
ACTIVE = PENDING | {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"}

# Waiting does not help a job that has one of these.
_HOPELESS = re.compile(
    "PartitionConfig|PartitionNodeLimit|PartitionTimeLimit|BadConstraints"
    "|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|PartitionInactive"
    "|JobHeldAdmin|launch_failed_requeued_held"
)
_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True)
class SlurmJob:
    """The state of a job according to the controller.

    Attributes:
        state: Such as `PENDING`, `RUNNING`, `COMPLETED`, `CANCELLED`.
        reason: Why it waits or ended; '' if there is none.
        code: Its exit status, as a shell would report it.
    """

    state: str
    reason: str = ""
    code: int = 0

    @property
    def is_active(self) -> bool:
        """True if a part of it runs, or will."""
        return self.state in ACTIVE

    @property
    def is_hopeless(self) -> bool:
        """True if it waits for an event that does not come by itself."""
        return self.state in PENDING and bool(_HOPELESS.fullmatch(self.reason))


def submit(script: str) -> str:
    """Submits a batch script, and returns the job's id."""
    answer = _run(["sbatch", "--parsable"], script)
    if answer.returncode:
        there = partitions()
        raise EngineError(
            f"sbatch fails: {_words(answer)}"
            + (f"; the partitions are {there}" if there else "")
        )
    # A federation of clusters adds the name of one after a semicolon.
    return answer.stdout.strip().partition(";")[0]


def look(job_id: str) -> SlurmJob | None:
    """Returns how a job stands; None if the controller has forgotten it."""
    answer = _run(["scontrol", "show", "job", "-o", job_id])
    if answer.returncode:
        if "Invalid job id" in answer.stderr:
            return None
        raise EngineError(f"Slurm does not answer: {_words(answer)}")
    # A heterogeneous job has one line per part, and ends as a whole.
    found = [parse(line) for line in answer.stdout.splitlines() if line.strip()]
    return next((each for each in found if each.is_active), found[0])


def parse(line: str) -> SlurmJob:
    """Reads a line of `scontrol show job -o`.

    >>> parse("JobId=7 JobName=x JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0")
    SlurmJob(state='FAILED', reason='NonZeroExitCode', code=3)
    """
    # The first of each name: a job's command, which comes later, may contain anything.
    state = re.search(r" JobState=(\w+)", line)
    reason = re.search(r" Reason=(\S+)", line)
    code = re.search(r" ExitCode=(\d+):(\d+)", line)
    if not (state and reason and code):
        raise EngineError(f"scontrol does not show a job, but {line[:80]!r}")
    why = "" if reason[1] in ("None", "(null)") else reason[1]
    status = int(code[1]) or (128 + int(code[2]) if int(code[2]) else 0)
    if state[1] not in ACTIVE and state[1] != "COMPLETED":
        status = status or (143 if state[1] in ("CANCELLED", "TIMEOUT") else 1)
    return SlurmJob(state[1], why, status)


def cancel(job_id: str) -> None:
    """Cancels a job; one that has ended stays as it is."""
    answer = _run(["scancel", job_id])
    if answer.returncode and "Invalid job id" not in answer.stderr:
        raise EngineError(f"job {job_id} cannot be cancelled: {_words(answer)}")


def requeue(job_id: str) -> bool:
    """Puts a job back into the queue; returns whether Slurm did."""
    return _run(["scontrol", "requeue", job_id]).returncode == 0


def partitions() -> str:
    """Returns the partitions, for a message: `all (3 nodes)`; '' if nobody says."""
    try:
        answer = _run(["sinfo", "--noheader", "--format=%R %D"])
    except EngineError:
        return ""  # The message says more.
    found = [line.split() for line in answer.stdout.splitlines()]
    return ", ".join(f"{each[0]} ({each[1]} nodes)" for each in found if len(each) == 2)


def hostnames(nodes: str) -> list[str]:
    """Returns the nodes of a list such as n[2,9-10], in Slurm's order."""
    answer = _run(["scontrol", "show", "hostnames", nodes])
    if answer.returncode:
        raise EngineError(f"Slurm cannot read the nodes {nodes!r}: {_words(answer)}")
    return answer.stdout.split()


def _run(command: Sequence[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_TIMEOUT,
        )
    except FileNotFoundError:
        raise EngineError(
            f"there is no {command[0]} here: run this on a login node of Slurm, or load "
            "Slurm's module first"
        ) from None
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"Slurm's {command[0]} did not answer within {_TIMEOUT:g} s: is its "
            "controller up?"
        ) from None


def _words(answer: "subprocess.CompletedProcess[str]") -> str:
    text = answer.stderr.strip() or f"status {answer.returncode}, and no message"
    return "; ".join(line.removeprefix("sbatch: error: ") for line in text.splitlines())
