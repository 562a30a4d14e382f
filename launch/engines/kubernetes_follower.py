"""Follows a job of Kubernetes from here: its output, its logs, its start and its removal."""

import time
from collections.abc import Iterator
from functools import partial

from launch.engines import engine, kubernetes_logs, kubernetes_state
from launch.engines.engine import ENDED, EngineError, Status
from launch.engines.kubernetes_client import KINDS, KubernetesClient
from launch.engines.kubernetes_logs import PodLogs
from launch.engines.kubernetes_objects import KubernetesJob
from launch.engines.kubernetes_pods import LAUNCHER, Pods
from launch.engines.kubernetes_state import CANCELLED
from launch.engines.record import Record
from launch.loopback.cluster import make_log_dir

_TURN, _MOMENT = 1.0, 0.1  # seconds
_LAST_WORDS = 10.0
_SILENCE_TIMEOUT = 600.0
_TEARDOWN_TIMEOUT = 60.0
_FAILED_TO_START = 1

tell = partial(engine.tell, "kubernetes")


class Follower:
    """Follows a job to its end, and keeps its logs.

    Args:
        client: The job's namespace.
        record: The record of the job.
        job: The submitted job; None for a job that was submitted before.
    """

    def __init__(
        self, client: KubernetesClient, record: Record, job: KubernetesJob | None
    ) -> None:
        self._client, self._record, self._job = client, record, job
        make_log_dir(record.log_dir)
        self._logs = PodLogs(
            client, kubernetes_logs.paths(record.log_dir, [*record.tasks])
        )
        self._is_up = job is None
        self._lacks = "not every pod runs"
        self._told: set[str] = set()
        self._begun = time.monotonic()
        self._end: Status | None = None
        self._is_late = False

    def lines(self, signals: list[int]) -> Iterator[str]:
        """Yields the launcher's lines until the job ends, or a signal is noted.

        Raises:
            EngineError: If the job cannot start; it is taken away first.
        """
        heard = time.monotonic()
        while self._end is None and not signals:
            try:
                self._look()
                heard = time.monotonic()
            except EngineError as error:
                # A job outlives a restart of the control plane.
                if self._is_late or time.monotonic() - heard > _SILENCE_TIMEOUT:
                    raise
                if str(error) not in self._told:
                    self._told.add(str(error))
                    tell(str(error))
            turn = time.monotonic() + _TURN
            while self._end is None and not signals and time.monotonic() < turn:
                yield from self._fresh()
                time.sleep(_MOMENT)
        if not signals:
            # The other pods end within a moment of the launcher's.
            deadline = time.monotonic() + _LAST_WORDS
            while self._logs.is_reading and time.monotonic() < deadline:
                self._logs.update(self._client.find("Pod", selector(self._record.name)))
                time.sleep(_MOMENT)
            yield from self._fresh()

    def _look(self) -> None:
        name = self._record.name
        pods = self._client.find("Pod", selector(name))
        self._logs.update(pods)
        jobs = self._client.find("Job", selector(name))
        self._end = kubernetes_state.end(jobs, pods)
        if self._end is None and not jobs:
            self._end = Status(ENDED, CANCELLED, "the job was deleted")
        if self._end is not None or self._is_up or self._job is None:
            return
        everyone, now = {LAUNCHER, *self._record.tasks}, kubernetes_state.started(pods)
        self._is_up = everyone <= now
        # The launcher looks after everything that has started once.
        self._lacks = self._lacks and kubernetes_state.shortage(
            everyone, now, self._job.min_workers
        )
        if not self._is_up:
            events = self._client.find("Event")
            self._complain(kubernetes_state.missing(pods, events, name))

    def _complain(self, causes: list[str]) -> None:
        """Tells what the job waits for, and gives up after its deadline."""
        assert self._job
        for cause in causes:
            if cause not in self._told:
                self._told.add(cause)
                tell(f"waiting for {cause}")
        is_late = time.monotonic() - self._begun > self._job.connect_timeout
        if is_late and self._lacks:
            self._is_late = True
            remove(self._client, self._record.name, self._record.grace_period)
            self._record.write_end(_FAILED_TO_START)
            why = "\n".join(causes) or "Kubernetes does not say why"
            raise EngineError(
                f"{self._lacks} after {self._job.connect_timeout:g} s "
                f"(--connect_timeout), and the job was deleted:\n{why}"
            )

    def _fresh(self) -> Iterator[str]:
        while not self._logs.lines.empty():
            yield self._logs.lines.get()

    def settle(self) -> int:
        """Records the end, takes the job away, and returns its exit status."""
        assert self._end
        assert self._end.code is not None
        if self._end.reason:
            tell(self._end.reason)
        self._record.write_end(self._end.code)
        remove(self._client, self._record.name, self._record.grace_period)
        return self._end.code


def selector(name: str) -> str:
    """Returns the labels that select a job's objects."""
    labels = Pods(name, "", ()).labels()
    return ",".join(f"{key}={value}" for key, value in labels.items())


def remove(client: KubernetesClient, name: str, grace_period: float) -> bool:
    """Deletes every object of a job, and waits; returns whether there was any."""
    found = selector(name)
    deadline = time.monotonic() + 2 * grace_period + _TEARDOWN_TIMEOUT
    was_there = False
    # With its launcher, a job ends as by Ctrl-C; then nobody needs the other pods.
    for group in (f"{found},app.kubernetes.io/component={LAUNCHER}", found):
        while True:
            left = [
                (kind, each["metadata"])
                for kind in KINDS
                for each in client.find(kind, group)
            ]
            was_there |= bool(left)
            pods = any(kind == "Pod" for kind, _ in left)
            for kind, metadata in left:
                # Objects that keep unauthorized hosts out stay as long as a pod.
                is_early = pods and kind in ("Service", "Secret", "NetworkPolicy")
                if "deletionTimestamp" not in metadata and not is_early:
                    client.delete(kind, metadata["name"])
            if not left:
                break
            if time.monotonic() > deadline:
                names = ", ".join(f"{kind} {each['name']}" for kind, each in left)
                raise EngineError(f"job {name} does not end: there is still {names}")
            time.sleep(_MOMENT)
    return was_there
