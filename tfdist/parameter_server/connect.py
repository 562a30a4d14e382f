"""Waiting for the servers of a cluster, with a deadline and a name for each."""

import logging
import socket
import threading
import time

import tf_config

_log = logging.getLogger("tfdist")

_PROBE_SECONDS = 1.0
_RETRY_SECONDS = 0.2
_NOTICE_SECONDS = 5.0


class StartupTimeoutError(TimeoutError):
    """A ps or a worker did not answer in time."""


def wait_for_servers(cluster: tf_config.Cluster, timeout: float) -> None:
    """Waits until every ps and every worker accepts connections.

    TensorFlow itself connects without a deadline: a task that was never started
    would hang the chief for ever, and without a word.

    Args:
        cluster: The cluster whose ps and workers to wait for.
        timeout: How long to wait for all of them together, in seconds.

    Raises:
        StartupTimeoutError: If one does not answer in time; names all such.
    """
    servers = [t for t in cluster.tasks() if t.job in ("ps", "worker")]
    answers = {task: _Probe(cluster.address(task)) for task in servers}
    started = noticed = time.monotonic()
    deadline = started + timeout
    try:
        while missing := [t for t, probe in answers.items() if not probe.answered()]:
            names = ", ".join(f"{t} at {cluster.address(t)}" for t in missing)
            if time.monotonic() >= deadline:
                raise StartupTimeoutError(
                    f"no server answered within {timeout:g} s for {names}. Start each "
                    "of them (python -m launch.task, or python -m launch.local for a "
                    "whole cluster on one machine), check the addresses in TF_CONFIG, "
                    "or give ParameterServerStrategy a longer startup_timeout"
                )
            if time.monotonic() - noticed > _NOTICE_SECONDS:
                noticed = time.monotonic()
                _log.warning(
                    "waiting for %s (%.0f of %g s)", names, noticed - started, timeout
                )
            time.sleep(_RETRY_SECONDS)
    finally:
        for probe in answers.values():
            probe.stop()


class _Probe:
    """Tries to connect to an address, again and again, in a thread of its own.

    Looking up a host name has no time-out: in this thread it could outlast any
    deadline.
    """

    def __init__(self, address: str) -> None:
        self._address = tf_config.split_address(address)
        self._answered = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                socket.create_connection(self._address, _PROBE_SECONDS).close()
            except OSError:
                self._stopped.wait(_RETRY_SECONDS)
            else:
                self._answered.set()
                return

    def answered(self) -> bool:
        return self._answered.is_set()

    def stop(self) -> None:
        self._stopped.set()
