"""Copies the logs of a job's pods to files here, while the pods are there."""

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from launch.engines.engine import EngineError
from launch.engines.kubernetes_client import KubernetesClient
from launch.engines.kubernetes_objects import task_of
from launch.engines.kubernetes_pods import LAUNCHER, LOG_PREFIX
from launch.engines.kubernetes_state import has_ended, has_log
from launch.job.plan import log_name

_RETRY_INTERVAL = 1.0  # seconds
_ITS_LOGS = re.compile(rb"/\S*" + LOG_PREFIX.encode() + rb"[a-z0-9_]+")
_OVERLAP = 2  # seconds that a log is read again after a break


class PodLogs:
    """The logs of the pods that were seen so far, one thread each.

    Attributes:
        lines: The launcher's lines, as they come.
    """

    def __init__(self, client: KubernetesClient, paths: Mapping[str, str]) -> None:
        self._client = client
        self._paths = paths
        self._readers: dict[str, threading.Thread] = {}
        self._ended: set[str] = set()
        self._fresh = set(paths)
        self.lines: queue.Queue[str] = queue.Queue()

    def update(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """Begins to read the logs of pods that have one now."""
        there = {pod["metadata"]["uid"] for pod in pods}
        self._ended |= {each for each in self._readers if each not in there}
        for pod in pods:
            uid, task = pod["metadata"]["uid"], task_of(pod)
            if has_ended(pod):
                self._ended.add(uid)
            if has_log(pod) and uid not in self._readers and task in self._paths:
                # The pod that takes the place of another continues in its file.
                mode = "wb" if task in self._fresh else "ab"
                self._fresh.discard(task)
                reader = threading.Thread(
                    target=self._read,
                    args=[pod["metadata"]["name"], uid, task, mode],
                    daemon=True,
                )
                self._readers[uid] = reader
                reader.start()

    @property
    def is_reading(self) -> bool:
        """True if some log has not been read to its end."""
        return any(reader.is_alive() for reader in self._readers.values())

    def _read(self, pod: str, uid: str, task: str, mode: str) -> None:
        # A disk that is full, here, must not end the training there.
        with contextlib.suppress(OSError), open(self._paths[task], mode) as file:
            last, since = b"", None
            while True:
                # Before reading: only what is read after the pod's end is known to be
                # the whole log.
                is_last = uid in self._ended
                begun, seen = time.monotonic(), last
                with contextlib.suppress(EngineError):
                    for line in _lines(self._client.log(pod, since)):
                        when, _, text = line.partition(b" ")
                        # Times are compared as bytes, and a `Z` would sort after
                        # further digits.
                        when = when.rstrip(b"Z").partition(b"+")[0]
                        if when <= seen:
                            continue  # It came before the break.
                        last = when
                        if task == LAUNCHER:
                            text = self._with_own_paths(text)
                        file.write(text)
                        file.flush()
                        if task == LAUNCHER:
                            self.lines.put(text.decode(errors="replace").rstrip("\n"))
                if is_last or uid in self._ended:
                    return
                time.sleep(_RETRY_INTERVAL)
                since = int(time.monotonic() - begun) + _OVERLAP if last else None

    def _with_own_paths(self, line: bytes) -> bytes:
        """Names in a line of the launcher the files here, which have the same names."""
        here = os.path.dirname(self._paths[LAUNCHER])
        return _ITS_LOGS.sub(lambda _: os.fsencode(here), line)


def paths(log_dir: str, tasks: Sequence[str]) -> dict[str, str]:
    """Returns the file for each task's log, and for the launcher's."""
    found = {each: os.path.join(log_dir, log_name(each)) for each in tasks}
    return {**found, LAUNCHER: os.path.join(log_dir, "launch.log")}


def _lines(chunks: Any) -> Any:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest
