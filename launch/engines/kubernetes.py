"""The engine Kubernetes: it replaces lost pods, and one of them supervises the others.

The supervisor of `launch.supervise` runs in the launcher's pod: no controller of
Kubernetes knows which tasks a lost ps takes with it. Here, the job is created, followed
and taken away.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

from launch.engines import background, here, kubernetes_objects, kubernetes_state
from launch.engines.engine import ENDED, RUNNING, STARTING, EngineError, Status
from launch.engines.here import logs
from launch.engines.kubernetes_client import KubernetesClient
from launch.engines.kubernetes_follower import Follower, remove, selector, tell
from launch.engines.kubernetes_objects import KubernetesJob
from launch.engines.kubernetes_pods import LAUNCHER
from launch.engines.kubernetes_state import CANCELLED
from launch.engines.record import Record
from tf_config.contract import EXIT_USAGE

__all__ = ["cancel", "detach", "follow", "logs", "render", "run", "status"]

_TEARDOWN_TIMEOUT = 60.0  # seconds


def render(job: KubernetesJob) -> str:
    """Returns the objects as JSON, for `kubectl apply -f -`."""
    objects = kubernetes_objects.render(job)
    made = {"apiVersion": "v1", "kind": "List", "items": objects}
    return json.dumps(made, indent=1) + "\n"


def run(job: KubernetesJob, record: Record) -> int:
    """Submits a job, shows its output, and returns its exit status."""
    # Before the job is there: a signal must not end this process and leave the job.
    signals = background.noted_signals()
    client = client_of(record)
    with record.held():
        _submit(job, record, client)
        tell(record.announcement)
        cancel = [sys.executable, "-m", "launch.jobs", "cancel", record.name]
        with background.guarded(cancel):
            follower = Follower(client, record, job)
            for line in follower.lines(signals):
                print(line, flush=True)
            if not signals:
                return follower.settle()
            tell(f"{signal.Signals(signals[0]).name}: cancelling job {record.name}")
            remove(client, record.name, record.grace_period)
            record.write_end(128 + signals[0])
            return 128 + signals[0]


def detach(job: KubernetesJob, record: Record) -> None:
    """Submits a job, and leaves a process that copies its logs here.

    The job does not need that process. Without it, the logs are in the pods.
    """
    client = client_of(record)

    def work(started: Callable[[], None]) -> None:
        with record.held():
            _submit(job, record, client)
            started()
            try:
                follower = Follower(client, record, job)
                for _ in follower.lines([]):
                    pass
                follower.settle()
            except EngineError as error:
                _note(record, str(error))
            except BaseException:
                _note(record, traceback.format_exc())

    background.run(os.devnull, work)


def _note(record: Record, text: str) -> None:
    with open(record.output, "a") as log:
        log.write(f"launch.kubernetes: {text}\n")


def _submit(job: KubernetesJob, record: Record, client: KubernetesClient) -> None:
    # A job has one for as long as a pod of it is there.
    if client.find("NetworkPolicy", selector(job.name)):
        raise EngineError(
            f"a job named {job.name!r} is in the namespace {client.namespace}: choose "
            f"another --name, or end it with python -m launch.jobs cancel {job.name}"
        )
    made = kubernetes_objects.render(job)
    try:
        for each in made:
            client.create(each)
    except BaseException:
        record.write_end(EXIT_USAGE)
        remove(client, job.name, 0)
        raise


def status(record: Record) -> Status:
    """Returns how a job stands."""
    client = client_of(record)
    pods = client.find("Pod", selector(record.name))
    jobs = client.find("Job", selector(record.name))
    if found := kubernetes_state.end(jobs, pods):
        return found
    if not jobs and not pods:
        code = record.end.get("code")
        return Status(ENDED, code, "" if code is not None else "it was deleted")
    everyone, started = {LAUNCHER, *record.tasks}, kubernetes_state.started(pods)
    nodes = kubernetes_state.nodes(pods)
    if everyone <= started:
        return Status(RUNNING, hosts=nodes)
    causes = kubernetes_state.missing(pods, client.find("Event"), record.name)
    lacks = kubernetes_state.shortage(everyone, started, record.min_workers)
    reason = "; ".join(causes)
    return Status(STARTING if lacks else RUNNING, reason=reason, hosts=nodes)


def follow(record: Record) -> Iterator[str]:
    """Yields the launcher's output; without a process that shows it, the logs."""
    if record.is_alive:
        yield from here.follow(record)
        return
    client = client_of(record)
    if not client.find("Pod", selector(record.name)):
        yield from here.follow(record)
        return
    with record.held():
        follower = Follower(client, record, None)
        yield from follower.lines([])
        follower.settle()


def cancel(record: Record) -> None:
    """Deletes a job, its launcher first, so that the chief can still reach the ps."""
    client = client_of(record)
    was_there = remove(client, record.name, record.grace_period)
    here.wait_for_end(record, _TEARDOWN_TIMEOUT)
    if was_there and not record.end:
        record.write_end(CANCELLED)


def client_of(record: Record) -> KubernetesClient:
    """Returns the namespace of a job."""
    return KubernetesClient(**record.where)
