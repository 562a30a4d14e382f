"""Runs a job, and returns the epochs of its script and its tasks."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.job.job import Job
from launch.loopback import foreground
from launch.loopback.cluster import make_log_dir
from launch.measure.counters import Read, Sampler, bytes_of, cpu_of
from launch.supervise import policy
from tf_config import contract
from tf_config.contract import EpochRecord
from tf_config.speedup import Epoch

HISTORY_FILE = "history.jsonl"
_CPU_INTERVAL, _BYTES_INTERVAL = 0.1, 1.0  # seconds


@dataclass(frozen=True)
class Measured:
    """Measurements of a job that has ended.

    Attributes:
        status: Its exit status.
        seconds: From its start to its end.
        reasons: Why it failed, in the supervisor's words.
        policy: The policy under which its steps ran; '' without one.
        epochs: The epochs of its script, in their order.
    """

    status: int
    seconds: float
    reasons: tuple[str, ...] = ()
    policy: str = ""
    epochs: tuple[Epoch, ...] = ()


def run(
    job: Job, env: Mapping[str, str] | None = None, count_bytes: Read | None = None
) -> Measured:
    """Runs a job to its end, and measures it.

    Args:
        job: The job.
        env: Variables for the tasks that run the script.
        count_bytes: Reads the bytes `sent TASK` and `received TASK` of each task. By
            default, the bytes of the connections of its process.
    """
    make_log_dir(job.log_dir)
    # Absolute, since the script may change its directory.
    path = Path(os.path.abspath(job.log_dir), HISTORY_FILE)
    path.unlink(missing_ok=True)
    job = _telling(job, {**(env or {}), contract.HISTORY: str(path)})
    samplers: list[Sampler] = []
    reasons: list[str] = []
    threads: list[threading.Thread] = []
    began = time.monotonic()
    with contextlib.ExitStack() as stack:

        def hear(event: Mapping[str, Any]) -> None:
            if "error" in event:
                reasons.append(event["error"])
            if "pids" in event and not samplers:
                pids = event["pids"]
                cpu = Sampler(cpu_of(pids), _CPU_INTERVAL)
                data = Sampler(bytes_of(pids), _BYTES_INTERVAL)
                if count_bytes:
                    data = Sampler(count_bytes, _CPU_INTERVAL)
                samplers.extend(map(stack.enter_context, (cpu, data)))

        # A thread, since this one waits for the end of the job.
        status = foreground.run(
            job, on_start=lambda handle: threads.append(handle.watch(hear))
        )
        for thread in threads:
            thread.join()
    records = list(_records(path))
    return Measured(
        status=status,
        seconds=time.monotonic() - began,
        reasons=tuple(reasons),
        policy=records[-1].policy if records else "",
        epochs=tuple(_epoch(each, samplers) for each in records),
    )


def _telling(job: Job, env: Mapping[str, str]) -> Job:
    """Adds variables to the tasks that run the script, but the file to one alone."""
    leader = policy.leader(job.plans)
    rest = {name: env[name] for name in env if name != contract.HISTORY}
    plans = tuple(
        plan if plan.is_server else plan.telling(env if plan.task == leader else rest)
        for plan in job.plans
    )
    return replace(job, plans=plans)


def _records(path: Path) -> Iterator[EpochRecord]:
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            # A script that was killed may have left half a line.
            with contextlib.suppress(ValueError, TypeError):
                yield EpochRecord.from_line(line)


def _epoch(record: EpochRecord, samplers: Sequence[Sampler]) -> Epoch:
    cpu, data = (
        (each.between(record.began, record.ended) for each in samplers)
        if samplers
        else ({}, {})
    )
    machine = cpu.pop("", 0.0)
    return Epoch(
        seconds=record.ended - record.began,
        steps=record.steps,
        messages=record.messages,
        logs=record.logs,
        cpu=cpu,
        sent=_direction(data, "sent "),
        received=_direction(data, "received "),
        other_cpu=max(machine - sum(cpu.values()), 0.0),
    )


def _direction(data: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): value
        for name, value in data.items()
        if name.startswith(prefix)
    }
