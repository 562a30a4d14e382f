"""The batch script of a job of Slurm: a pure function of the user's request."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launch.engines.engine import EngineError

JOB_VARIABLE = "LAUNCHER_SLURM_JOB"
"""Tells the command that it runs in the batch script, and the job's name."""

# A directive is read by sbatch, not by a shell: nothing in it needs quotes.
_DIRECTIVE = re.compile(r"--[a-z][a-z-]*(=[A-Za-z0-9_.,:@%+/=*&|()\[\]-]+)?")
_OURS = ("array", "wrap", "output", "job-name", "signal", "no-requeue", "parsable")


@dataclass(frozen=True)
class JobPart:
    """Nodes of one kind.

    Attributes:
        nodes: How many.
        tasks_per_node: How many tasks each of them runs.
        gpus_per_node: How many GPUs of each the job needs.
        least: How many are enough; 0 for all.
    """

    nodes: int
    tasks_per_node: int
    gpus_per_node: int = 0
    least: int = 0

    @property
    def directives(self) -> dict[str, object]:
        """The options of sbatch that ask for them."""
        few = 0 < self.least < self.nodes
        asked: dict[str, object] = {
            "nodes": f"{self.least}-{self.nodes}" if few else self.nodes,
            "ntasks-per-node": self.tasks_per_node,
        }
        if self.gpus_per_node:
            asked["gres"] = f"gpu:{self.gpus_per_node}"
        return asked


@dataclass(frozen=True)
class Batch:
    """A job as it is submitted.

    Attributes:
        name: Its name.
        parts: Its nodes; several parts make a heterogeneous job.
        command: The command of its first node.
        cwd: The working directory.
        output: The file of the command's output.
        warning: Seconds before the time limit at which Slurm warns the command.
        options: Options of sbatch that hold for every part, such as `partition`.
        extra: More of them, as the user wrote them.
        may_lose_nodes: Whether the job continues when a node fails.
    """

    name: str
    parts: Sequence[JobPart]
    command: Sequence[str]
    cwd: str
    output: str
    warning: int
    options: Mapping[str, object] = field(default_factory=dict)
    extra: Sequence[str] = ()
    may_lose_nodes: bool = False


def parts(
    counts: Mapping[str, int],
    nodes: int | None,
    gpus: int,
    min_workers: int | None = None,
) -> list[JobPart]:
    """Returns the nodes for a cluster.

    Workers with GPUs and other tasks without have nodes of their own. Where fewer workers
    are enough, so are the nodes that have room for these and for all other tasks. A job
    does not grow, and the parts of a heterogeneous job start together: so optional nodes
    are a range of one part.

    Args:
        counts: How many tasks there are of each job.
        nodes: How many nodes the user wants, for the workers if they have GPUs; None
            for one per worker, and at least one per ps.
        gpus: The number of GPUs per worker.
        min_workers: How many workers are enough; None for all.

    >>> parts({"ps": 2, "worker": 4, "chief": 1}, None, 0)
    [JobPart(nodes=4, tasks_per_node=2, gpus_per_node=0, least=0)]
    >>> for part in parts({"ps": 2, "worker": 4, "chief": 1}, 2, 1):
    ...     print(part)
    JobPart(nodes=2, tasks_per_node=2, gpus_per_node=2, least=0)
    JobPart(nodes=2, tasks_per_node=2, gpus_per_node=0, least=0)
    >>> parts({"ps": 1, "worker": 3, "chief": 1}, None, 0, min_workers=1)
    [JobPart(nodes=3, tasks_per_node=2, gpus_per_node=0, least=2)]
    """
    workers, num_ps = counts.get("worker", 0), counts.get("ps", 0)
    others = sum(counts.values()) - workers
    needed = workers if min_workers is None else min_workers
    if not (gpus and workers):
        number = nodes or max(num_ps, workers, 1)
        each = _share(workers + others, number)
        # The ps keep nodes of their own.
        least = max(_share(needed + others, each), min(num_ps, number))
        return [JobPart(number, each, least=least if needed < workers else 0)]
    number = nodes or workers
    each = _share(workers, number)
    least = _share(needed, each) if needed < workers else 0
    found = [JobPart(number, each, each * gpus, least)]
    if others:
        # Slurm chooses the nodes of one part after the other. The first would get nodes
        # with GPUs that the second needs, and the job would wait forever.
        found.append(JobPart(max(num_ps, 1), _share(others, max(num_ps, 1))))
    return found


def _share(tasks: int, nodes: int) -> int:
    return -(-tasks // nodes)


def check_directive(text: str) -> str:
    """Returns an option of sbatch that a script can carry."""
    name = text.partition("=")[0].removeprefix("--")
    if name in _OURS:
        raise EngineError(f"the launcher needs --{name} of sbatch for itself: omit it")
    if not _DIRECTIVE.fullmatch(text):
        raise EngineError(
            f"{text!r} is no option of sbatch that a script can carry: write "
            "--option=value, without spaces and quotes"
        )
    return text


def render(batch: Batch) -> str:
    """Returns the script."""
    first = {
        "job-name": batch.name,
        # The script redirects its output itself: a directive would expand % in a path.
        "output": "/dev/null",
        "open-mode": "append",
        "requeue": None,
        "signal": f"B:USR1@{batch.warning}",
    }
    if batch.may_lose_nodes:
        first["no-kill"] = None
    lines = ["#!/bin/sh"]
    for index, part in enumerate(batch.parts):
        if index:
            lines.append("#SBATCH hetjob")
        asked = {**({} if index else first), **batch.options, **part.directives}
        words = [
            f"--{name}" if value is None else f"--{name}={value}"
            for name, value in asked.items()
        ]
        lines += [f"#SBATCH {_checked(each)}" for each in words]
        lines += [f"#SBATCH {check_directive(each)}" for each in batch.extra]
    lines += [
        # Lost if it comes before Python listens; deadly if nobody ignored it.
        "trap '' USR1",
        # The command makes it, but someone may submit what --dry_run prints.
        f"mkdir -p {_quote(os.path.dirname(batch.output) or '.')} || exit 1",
        f"exec >>{_quote(batch.output)} 2>&1",
        # After the output: a node without this directory says so there.
        f"cd {_quote(batch.cwd)} || exit 1",
        f"export {JOB_VARIABLE}={_quote(batch.name)}",
        f"exec {' '.join(map(_quote, batch.command))}",
    ]
    return "\n".join(lines) + "\n"


def _checked(directive: str) -> str:
    if not _DIRECTIVE.fullmatch(directive):
        raise EngineError(
            f"{directive!r} cannot be asked of Slurm: its value must not have spaces, "
            "quotes or other special characters"
        )
    return directive


def _quote(word: str) -> str:
    # sbatch refuses a script with line ends of DOS anywhere.
    return shlex.quote(word).replace("\r", "'\"$(printf '\\015')\"'")
