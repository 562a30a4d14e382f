"""Measures how much faster a script trains with more workers.

    python -m launch.speedup --workers=1,2,4,8 --output=speedup.json train.py --epochs=5

Runs the script on a local cluster of each size, one after the other, as `launch.local`
does with the same flags. The first epoch of a run, in which functions are traced, does
not count. Flags after the script belong to the script; it needs no
arguments for cluster size or policy. docs/pays.md says how to read the result.
"""

import contextlib
import os
import signal
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import rich.box
import rich.console
import rich.table

from launch import local
from launch.flags import command_line
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.job.job import Job
from launch.job.paths import existing_part
from launch.job.plan import Program
from launch.loopback.cluster import at_free_ports, new_log_dir
from launch.measure.run import Measured, run
from launch.measure.shaped import (
    RateError,
    ShapedHosts,
    burst_of,
    bytes_per_second,
    shaped_hosts,
)
from launch.network.namespaces import NetworkError
from tf_config import Cluster, contract
from tf_config.speedup import Run, Speedup
from tf_config.whole_file import write_whole

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns 0, or 1 if a run failed.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    if values["num_workers"].present:
        raise UsageError(
            "--num_workers is one size: give all of them, as in --workers=1,2,4"
        )
    sizes = schedule(values.workers, values.consistency, values.repeats)
    most = max(size.workers for size in sizes)
    rate = _check(values)
    job = _job(values, program, most, at_free_ports)  # Checks the rest of the flags.
    if values.dry_run:
        print("\n".join(f"# {_describe(size, values)}" for size in sizes))
        print(local.describe(job))
        return 0
    measured = Speedup(
        program=program.argv,
        num_ps=values.num_ps,
        cores=len(os.sched_getaffinity(0)),
        rate=rate,
        burst=burst_of(rate) if rate else 0,
    )
    with _hosts(values, most) as hosts:
        log_dir = values.log_dir or new_log_dir()
        Path(values.output).parent.mkdir(parents=True, exist_ok=True)
        for number, size in enumerate(sizes, start=1):
            make_cluster = hosts.cluster if hosts else at_free_ports
            values["log_dir"].value = os.path.join(log_dir, _name(size))
            job = replace(_job(values, program, size.workers, make_cluster), echo=False)
            job = hosts.place(job) if hosts else job
            count_bytes = partial(hosts.bytes_of, job) if hosts else None
            print(
                f"{number}/{len(sizes)} {_describe(size, values)}: ", end="", flush=True
            )
            found = run(job, {contract.CONSISTENCY: size.consistency}, count_bytes)
            print(_report(found, size, job), flush=True)
            _end_if_interrupted(found)
            measured = replace(measured, runs=(*measured.runs, _run_of(size, found)))
            # After each run: whoever ends the command keeps what it has measured.
            write_whole(values.output, measured.to_json().encode())
    # Rich shrinks a table to the width of its console.
    rich.console.Console(width=160).print(table(measured))
    print(f"written to {values.output}")
    return int(any(each.status or not each.epochs for each in measured.runs))


@dataclass(frozen=True)
class PlannedRun:
    """One run to make.

    Attributes:
        workers: The number of workers.
        consistency: The policy.
        repeat: Its number among the runs with these two, from 0.
    """

    workers: int
    consistency: str
    repeat: int


def schedule(
    workers: Sequence[str], policies: Sequence[str], repeats: int
) -> list[PlannedRun]:
    """Returns the runs: every size once, then again in reverse, and so on.

    A machine that gets slower meanwhile is so for all sizes.

    >>> [size.workers for size in schedule(["2", "1"], ["asynchronous"], 2)]
    [1, 2, 2, 1]
    """
    for text in workers:
        if not (text.isdecimal() and int(text)):
            raise UsageError(
                f"--workers must be a list of numbers from 1, as in 1,2,4; received {text!r}"
            )
    for text in policies:
        if not contract.is_policy(text):
            raise UsageError(f"--consistency: {contract.unknown_policy(text)}")
    sizes = sorted(map(int, workers))
    for name, given in (("workers", sizes), ("consistency", [*policies])):
        if not given or len(set(given)) < len(given):
            raise UsageError(
                f"--{name} names each value once, and one at least; received {given}"
            )
    once = [(size, policy) for size in sizes for policy in policies]
    return [
        PlannedRun(size, policy, repeat)
        for repeat in range(repeats)
        for size, policy in (once[::-1] if repeat % 2 else once)
    ]


def table(measured: Speedup) -> rich.table.Table:
    """Returns a row per policy and number of workers: medians over the repeats."""
    found = rich.table.Table(box=rich.box.ROUNDED)
    headings = ["policy", "workers", "s/epoch", "steps/s", "speedup"]
    headings += ["CPU s/epoch: chief", "ps", "workers", "runs"]
    for heading in headings:
        found.add_column(heading, justify="left" if heading == "policy" else "right")
    for policy in measured.policies:
        for workers in measured.sizes:
            if runs := measured.of(policy, workers):
                found.add_row(*_cells(measured, policy, runs))
        found.add_section()
    return found


def _cells(measured: Speedup, policy: str, runs: Sequence[Run]) -> list[str]:
    speedup = measured.speedup(policy, runs[0].workers)
    cells = [
        policy,
        str(runs[0].workers),
        f"{statistics.median(run.seconds_per_epoch for run in runs):.2f}",
        f"{statistics.median(run.steps_per_second for run in runs):.1f}",
        "" if speedup is None else f"{speedup:.2f}",
    ]
    for job in ("chief", "ps", "worker"):
        cpu = [run.total_of("cpu", job) / len(run.steady) for run in runs]
        cells.append(f"{statistics.median(cpu):.2f}")
    return [*cells, str(len(runs))]


def _define_flags() -> Flags:
    values = local.define_flags()
    values["num_workers"].value = None
    values.texts("workers", ["1", "2", "4", "8"], "The numbers of workers.")
    values.texts(
        "consistency",
        [contract.ASYNCHRONOUS],
        f"The policies, of which each size is measured with every one: "
        f"{contract.ASYNCHRONOUS}, {contract.BOUNDED}:STALENESS, {contract.SYNCHRONOUS}, "
        f"{contract.SYNCHRONOUS}:BACKUPS. A script whose strategy names its own policy "
        "keeps that.",
    )
    values.integer(
        "repeats",
        3,
        "How often to measure each size; the sizes take turns.",
        lower_bound=1,
    )
    values.text("output", "speedup.json", "The file to write.")
    values.text(
        "rate",
        None,
        "Give each task a host with a link of this rate, such as 200mbit: a network "
        "namespace on this machine. Needs root and iproute2.",
    )
    return values


def _check(values: Flags) -> float | None:
    """Checks the files and the rate, and returns the rate in bytes per second."""
    if values.checkpoint_dir:
        raise UsageError(
            "--checkpoint_dir would let each run continue where the one before ended: "
            "leave it out"
        )
    path = values.output
    if os.path.isdir(path) or not os.access(existing_part(path), os.W_OK):
        raise UsageError(f"cannot write {path}: choose another file")
    try:
        return bytes_per_second(values.rate) if values.rate else None
    except RateError as error:
        raise UsageError(f"--rate: {error}") from None


@contextlib.contextmanager
def _hosts(values: Flags, most: int) -> Iterator[ShapedHosts | None]:
    if values.rate is None:
        yield None
        return
    try:
        with shaped_hosts(values.rate, values.num_ps, most) as hosts:
            yield hosts
    except NetworkError as error:
        raise UsageError(f"--rate={values.rate}: {error}") from None


def _job(
    values: Flags,
    program: Program,
    workers: int,
    make_cluster: Callable[[Mapping[str, int]], Cluster],
) -> Job:
    values["num_workers"].value = workers
    return local.job_of(values, program, make_cluster)


def _run_of(size: PlannedRun, found: Measured) -> Run:
    own = {name: value for name, value in vars(found).items() if name != "reasons"}
    return Run(**vars(size), **own)


def _report(found: Measured, size: PlannedRun, job: Job) -> str:
    if found.status:
        why = "; ".join(found.reasons) or f"exit status {found.status}"
        return f"failed ({why}); see {job.log_dir}"
    if not found.epochs:
        return (
            "no epoch was reported: the script must train with Keras's fit under a "
            f"strategy of tfdist; see {job.log_dir}"
        )
    one = _run_of(size, found)
    text = f"{one.seconds_per_epoch:.2f} s/epoch, {one.steps_per_second:.1f} steps/s"
    if found.policy and found.policy != size.consistency:
        text += (
            f"; the script's strategy has consistency {found.policy}, whatever "
            f"--consistency={size.consistency} says"
        )
    return text


def _end_if_interrupted(found: Measured) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):
        # `foreground.run` has left them ignored.
        signal.signal(signum, signal.SIG_DFL)
        if found.status == 128 + signum:
            raise SystemExit(found.status)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _describe(size: PlannedRun, values: Flags) -> str:
    workers = f"{size.workers} worker{'s' if size.workers > 1 else ''}"
    links = f", links of {values.rate}" if values.rate else ""
    return f"{workers}, {size.consistency}{links}, repeat {size.repeat + 1}"


def _name(size: PlannedRun) -> str:
    policy = size.consistency.replace(":", "-")
    return f"{size.workers}-workers-{policy}-{size.repeat}"


if __name__ == "__main__":
    command_line.run(main, "launch.speedup")
