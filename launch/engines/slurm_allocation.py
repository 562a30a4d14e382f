"""The nodes that Slurm has given to this process, and what it says about their end."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launch.engines import slurm_client
from launch.engines.engine import EngineError

JOB_ID = "SLURM_JOB_ID"
_STEP_TIMEOUT = 5.0  # seconds

# Tasks of srun must outlive the signals that Slurm sends to all processes of a job at
# once. The launcher decides which tasks end, and ends the chief first.
_DEAF = "trap '' TERM; exec sh -c \"$0\""
# `os.write` returns 7: one expression tells the launcher, and exits with status 0.
_WATCH = (
    "import os, signal, sys; "
    "signal.signal(signal.SIGTERM, lambda *_: os._exit(os.write(1, b'warned\\n') - 7)); "
    "sys.stdin.read()"
)


@dataclass(frozen=True)
class SlurmNode:
    """One node.

    Attributes:
        name: Its name.
        part: The part of a heterogeneous job that it belongs to; None in another job.
    """

    name: str
    part: int | None = None

    def srun(self) -> tuple[str, ...]:
        """Returns the command that runs another on it, next to what runs there."""
        part = () if self.part is None else (f"--het-group={self.part}",)
        one = ("-N1", "-n1", f"--nodelist={self.name}")
        # Without --overlap, a step waits for what other steps of the job use.
        return ("srun", *part, "--overlap", *one, "--mpi=none")

    def connect(self, gpus: range | None = None) -> tuple[str, ...]:
        """Returns the command that runs a line of shell on it, its last argument.

        The line sees some of the GPUs that Slurm shows there, or all.
        """
        line = _DEAF
        if gpus is not None:
            # Slurm numbers the GPUs as it likes, and may not say how. cut counts from 1.
            default = ",".join(map(str, range(gpus.stop)))
            line = (
                f'all="${{CUDA_VISIBLE_DEVICES:-{default}}}"; '
                'export CUDA_VISIBLE_DEVICES="$(printf %s "$all" | '
                f'cut -d, -f{gpus.start + 1}-{gpus.stop})"; {_DEAF}'
            )
        return (*self.srun(), "sh", "-c", line)


def parts(environ: Mapping[str, str]) -> list[list[SlurmNode]]:
    """Returns the nodes of each part of the allocation; one part if they are alike."""
    found = []
    for index in range(int(environ.get("SLURM_HET_SIZE", "0"))):
        nodes = environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{index}", "")
        found.append([SlurmNode(each, index) for each in slurm_client.hostnames(nodes)])
    if not found:
        if not (nodes := environ.get("SLURM_JOB_NODELIST", "")):
            raise EngineError(
                f"{JOB_ID} is set, and SLURM_JOB_NODELIST is not: this is no allocation "
                f"of Slurm; unset {JOB_ID} to submit a job"
            )
        found = [[SlurmNode(each) for each in slurm_client.hostnames(nodes)]]
    return found


def with_room(
    counts: Mapping[str, int], min_workers: int, environ: Mapping[str, str]
) -> dict[str, int]:
    """Returns how many tasks of each job start in an allocation.

    An allocation that says nothing of tasks, or has room for fewer, is used as it is.

    >>> four = {"ps": 1, "worker": 4, "chief": 1}
    >>> with_room(four, 1, {"SLURM_NTASKS": "4"})["worker"]
    2
    """
    workers = counts["worker"]
    # In a heterogeneous job this is the first part, which only the workers use.
    others = 0 if "SLURM_HET_SIZE" in environ else sum(counts.values()) - workers
    if room := int(environ.get("SLURM_NTASKS", "0")):
        workers = min(workers, max(min_workers, room - others))
    return {**counts, "worker": workers}


class Warnings:
    """Notices that Slurm will take the nodes, and then ends this process with SIGTERM.

    Slurm sends SIGUSR1 to the batch script before the time limit. Before a preemption
    it sends SIGTERM to the steps alone, so a step is there to hear it.
    """

    def __init__(self) -> None:
        self.came = False

    @contextlib.contextmanager
    def watched(self, node: SlurmNode) -> Iterator[None]:
        """Watches from a node for as long as the context lasts."""
        signal.signal(signal.SIGUSR1, lambda *_: self._warn())
        step = subprocess.Popen(
            [*node.srun(), sys.executable, "-I", "-c", _WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        listener = threading.Thread(target=self._listen, args=[step], daemon=True)
        listener.start()
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            assert step.stdin
            step.stdin.close()  # It ends with its input.
            with contextlib.suppress(subprocess.TimeoutExpired):
                step.wait(_STEP_TIMEOUT)
            step.kill()
            step.wait()
            listener.join(_STEP_TIMEOUT)  # A warning may still be on its way.

    def _listen(self, step: "subprocess.Popen[bytes]") -> None:
        assert step.stdout
        for line in iter(step.stdout.readline, b""):
            if line == b"warned\n":
                self._warn()
        # It may have been warned before it could say so.
        if step.wait() == 128 + signal.SIGTERM:
            self._warn()

    def _warn(self) -> None:
        if not self.came:
            self.came = True
            os.kill(os.getpid(), signal.SIGTERM)
