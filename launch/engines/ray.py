"""The engine Ray: an actor per task, in places that are reserved together.

The supervisor of `launch.supervise` runs here, as for ssh. Each of its processes is a
bridge to an actor, which runs the agent of `launch.remote` on its node. One more process,
`launch.engines.ray_driver_process`, is the job for Ray.
"""

import json
import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from launch.engines import here, ray_launcher_process
from launch.engines.engine import STARTING, EngineError, Status, tell
from launch.engines.here import RunEnd, cancel, follow, logs
from launch.engines.layout import record_of
from launch.engines.ray_launcher_process import DriverHandle
from launch.engines.ray_places import Places
from launch.engines.ray_request import RayRequest, describe
from launch.engines.record import Record
from launch.job.job import Job
from launch.loopback import foreground
from launch.supervise import policy
from launch.supervise.handle import Handle
from tf_config import Task

__all__ = ["cancel", "detach", "follow", "logs", "render", "run", "status"]

_tell = partial(tell, "ray")


@dataclass(frozen=True)
class RayJob:
    """A job before Ray has said where its tasks run.

    Attributes:
        request: The request to Ray.
        example: The job on nodes that do not exist, for a person to read.
        plan: Plans it on the nodes that Ray has chosen, after a look at them.
    """

    request: RayRequest
    example: Job
    plan: Callable[[Places], Job]


def render(job: RayJob) -> str:
    """Returns the request to Ray, and the command of each task."""
    request = job.request
    lines = [
        # JSON has no line ends in it.
        f"# Ray at {json.dumps(request.address)}, within {request.timeout:g} s: "
        f"{describe(request.groups)}",
        f"# runtime_env: {json.dumps(request.runtime_env)}",
        "# examples of addresses: Ray chooses the nodes when the job starts",
    ]
    for plan in job.example.plans:
        # Ray has no command that a person could run on a node; this is for a shell there.
        lines += replace(plan, remote=None).lines
    return "\n".join(lines)


def run(job: RayJob, record: Record) -> int:
    """Runs a job to its end; however this process ends, the job ends with it."""
    return here.run(record, partial(_run, job), _tell)


def detach(job: RayJob, record: Record) -> None:
    """Starts a process of its own that runs the job, and waits for its places."""
    here.detach(record, partial(_run, job))


def status(record: Record) -> Status:
    """Returns how a job stands."""
    if record.is_alive and not record.tasks:
        return Status(STARTING, reason="Ray has not reserved what it needs yet")
    return here.status(record)


def _run(job: RayJob, record: Record, lock: int, started: Callable[[], None]) -> int:
    """Runs a job, again on other nodes if one is lost or there are more."""
    codes: list[int] = []

    def once(log_dir: str) -> RunEnd:
        try:
            found = run_on_places(log_dir)
        except EngineError as error:
            # Raised before the first run, it says that nothing was started.
            if not codes:
                raise
            _tell(f"the job cannot go on elsewhere: {error}")
            return RunEnd(codes[-1])
        codes.append(found.code)
        return found

    def run_on_places(log_dir: str) -> RunEnd:
        log = ray_launcher_process.log_path(record.log_dir)
        with closing(DriverHandle(job.request, log, [lock])) as driver:
            planned = replace(job.plan(driver.places()), log_dir=log_dir)
            found = record_of(planned, record.name, record.engine)
            replace(found, output=record.output).write()
            started()
            moved = _Moved(planned)
            code = foreground.run(
                planned,
                [lock, driver.fileno()],
                spare=[driver.pid],
                on_start=lambda handle: driver.watch(partial(moved.hear, handle)),
                on_signal=moved.interrupt,
            )
        if not (code and moved.came) or moved.interrupted:
            return RunEnd(code)
        # The program was told to end, which is not why.
        return RunEnd(policy.exit_status(policy.LOST), True, moved.has_grown)

    return here.run_and_move(job.example, record, once, _tell)


class _Moved:
    """Ends the tasks of a job if one has lost its node for another, or more may run.

    The addresses of all tasks are in all others, so the program starts again.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lost: set[Task] = set()
        self.came = False
        self.has_grown = False
        self.interrupted = False

    def hear(self, handle: Handle, event: Mapping[str, Any]) -> None:
        if "granted" in event and not self.came:
            self.came = self.has_grown = True
            _tell(
                f"Ray has room for {event['granted']} more of the workers: the program "
                "starts again with them, from its last checkpoint"
            )
            handle.signal(signal.SIGTERM)
        elif "moved" in event and not self._can_spare(event) and not self.came:
            self.came = True
            now = event["now"]
            found = f"has given it another, {now}" if now else "has no other like it"
            _tell(
                f"{event['moved']} has lost its node {event['was']}, and Ray {found}: the "
                "program starts again, on the nodes that there are, from its last "
                "checkpoint"
            )
            handle.signal(signal.SIGTERM)

    def _can_spare(self, event: Mapping[str, str]) -> bool:
        """Returns True if the job continues without a task, as the supervisor decides it, too."""
        job, plans = self._job, self._job.plans
        (task,) = (plan.task for plan in plans if plan.name == event["moved"])
        is_news = task not in self._lost
        lost = {*self._lost, task}
        if not policy.can_spare(plans, lost, (), job.needed_workers):
            return False
        self._lost = lost
        if is_news and not self.came:
            _tell(
                f"{task} has lost its node {event['was']}: the job goes on without it "
                f"(--min_workers={self._job.min_workers})"
            )
        return True

    def interrupt(self, signum: int) -> None:
        self.interrupted = True
