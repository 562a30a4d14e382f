"""Waiting for the servers of a cluster, with a deadline and a name for each."""

import socket
import time

from absl import logging

import tf_config

_PROBE_SECONDS = 1.0
_RETRY_SECONDS = 0.2


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
    deadline = time.monotonic() + timeout
    missing = [t for t in cluster.tasks() if t.job in ("ps", "worker")]
    waits = 0
    while True:
        missing = [t for t in missing if not _accepts(cluster.address(t))]
        if not missing:
            return
        names = ", ".join(f"{t} at {cluster.address(t)}" for t in missing)
        if time.monotonic() >= deadline:
            raise StartupTimeoutError(
                f"no server answered within {timeout:g} s for {names}. Start each of "
                "them (python -m launch.task, or python -m launch.local for a whole "
                "cluster on one machine), check the addresses in TF_CONFIG, or give "
                "ParameterServerStrategy a longer startup_timeout"
            )
        waits += 1
        logging.log_every_n(logging.INFO, "waiting for %s", 25, names)
        time.sleep(_RETRY_SECONDS)


def _accepts(address: str) -> bool:
    try:
        host, port = tf_config.split_address(address)
        with socket.create_connection((host, port), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False
