"""Waits for other tasks to start, such as the ps and the workers, with a deadline."""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping

import tf_config
from tf_config import proxies
from tfdist._support.errors import Error
from tfdist.cluster.health import StatusConnection, problem_of

_log = logging.getLogger("tfdist")

_PROBE_SECONDS = 1.0
_RETRY_SECONDS = 0.2
_NOTICE_SECONDS = 5.0


class StartupTimeoutError(Error, TimeoutError):
    """A task of the cluster did not answer in time."""


def wait_for(
    tasks: Mapping[tf_config.Task, str],
    timeout: float,
    advice: str,
    *,
    servers: bool = False,
    min_workers: int | None = None,
) -> tuple[tf_config.Task, ...]:
    """Waits until every task accepts connections, or all but some workers.

    TensorFlow itself connects without a deadline, and hangs without a message. All have
    `timeout` seconds together; `advice` ends the error. With `servers`, each must also
    answer as a TensorFlow server. Returns the workers that do not answer yet, where
    `min_workers` workers are enough.

    Raises:
        StartupTimeoutError: If a task does not answer in time; names all that did not.
        tf_config.ClusterError: If the environment names a proxy for one of them.
    """
    # TensorFlow would use it, and the sockets below would not show that.
    check_no_proxy(tasks.values())
    workers = sum(task.job == "worker" for task in tasks)
    needed = workers if min_workers is None else min_workers
    answers = {task: _Probe(address, servers) for task, address in tasks.items()}
    started = noticed = time.monotonic()
    deadline = started + timeout
    try:
        while True:
            missing = [t for t, probe in answers.items() if not probe.answered()]
            present = workers - sum(task.job == "worker" for task in missing)
            if present >= needed and all(task.job == "worker" for task in missing):
                return tuple(missing)
            names = ", ".join(
                f"{task} at {tasks[task]}{answers[task].problem}" for task in missing
            )
            if time.monotonic() >= deadline:
                raise StartupTimeoutError(
                    f"no server answered within {timeout:g} s for {names}"
                    f"{_shortage(present, needed, workers)}. {advice}"
                )
            if time.monotonic() - noticed > _NOTICE_SECONDS:
                noticed = time.monotonic()
                _log.warning(
                    "waiting for %s (%.0f of %g s)", names, noticed - started, timeout
                )
            # For one of them: the threads of the others continue meanwhile.
            answers[missing[0]].wait(_RETRY_SECONDS)
    finally:
        for probe in answers.values():
            probe.stop()


def _shortage(present: int, needed: int, workers: int) -> str:
    """Returns, as text, how many workers are needed, unless it is all of them.

    >>> _shortage(1, 2, 4), _shortage(1, 4, 4)
    ('; 1 of 4 workers answers, and 2 are needed (min_workers=2)', '')
    """
    if needed == workers:
        return ""
    answer = "answers" if present == 1 else "answer"
    return (
        f"; {present} of {workers} workers {answer}, and {needed} "
        f"{'is' if needed == 1 else 'are'} needed (min_workers={needed})"
    )


def check_no_proxy(addresses: Iterable[str]) -> None:
    """Checks that TensorFlow will reach these addresses without a proxy.

    Raises:
        tf_config.ClusterError: If the environment names a proxy without an exception
            for their hosts. TensorFlow would wait for them forever.
    """
    hosts = [tf_config.split_address(address)[0] for address in addresses]
    if found := proxies.proxied(hosts, os.environ):
        (setting,) = proxies.exception_for(hosts, os.environ).items()
        raise tf_config.ClusterError(
            f"the environment variable {proxies.proxy(os.environ)} names a proxy, and "
            f"TensorFlow would reach {', '.join(found)} through it, and hang: export "
            f"{'='.join(setting)} on every machine, or start each task by python -m "
            "launch.task or launch.local, which do so"
        )


def unreachable(tasks: Mapping[tf_config.Task, str]) -> list[str]:
    """Tries once to connect to each task; returns the names and addresses that fail.

    A stopped process still accepts connections.
    """
    return [
        f"{task} at {address}"
        for task, address in tasks.items()
        if not _accepts(address)
    ]


def _accepts(address: str) -> bool:
    try:
        socket.create_connection(
            tf_config.split_address(address), _PROBE_SECONDS
        ).close()
    except OSError:
        return False
    return True


class _Probe:
    """Tries repeatedly to connect to an address, in a background thread.

    A host name lookup has no timeout, so the caller's thread could miss the deadline.
    """

    def __init__(self, address: str, server: bool) -> None:
        self.problem = ""
        self._name = address
        self._server = server
        self._address = tf_config.split_address(address)
        self._answered = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            problem = self._try()
            if problem is None:
                self._answered.set()
                return
            self.problem = f" ({problem})"
            self._stopped.wait(_RETRY_SECONDS)

    def _try(self) -> str | None:
        try:
            socket.create_connection(self._address, _PROBE_SECONDS).close()
        except OSError as error:
            return (error.strerror or str(error)).lower()
        if not self._server:
            return None
        server = StatusConnection(self._name)
        try:
            return problem_of(server.ask(_PROBE_SECONDS))
        finally:
            server.close()

    def answered(self) -> bool:
        return self._answered.is_set()

    def wait(self, timeout: float) -> None:
        self._answered.wait(timeout)

    def stop(self) -> None:
        self._stopped.set()


def wait_for_servers(
    cluster: tf_config.Cluster, timeout: float, min_workers: int | None = None
) -> tuple[tf_config.Task, ...]:
    """Waits until every ps and enough workers answer as TensorFlow servers.

    They have `timeout` seconds together. Returns the workers that do not answer yet.
    """
    return wait_for(
        servers_of(cluster),
        timeout,
        "Start each of them (python -m launch.task, or python -m launch.local for a "
        "whole cluster on one machine), check the addresses in TF_CONFIG, or give "
        "ParameterServerStrategy a longer startup_timeout. `python -m launch.doctor` "
        "says more about each",
        servers=True,
        min_workers=min_workers,
    )


def servers_of(cluster: tf_config.Cluster) -> dict[tf_config.Task, str]:
    """Returns the address of each ps and worker."""
    servers = [t for t in cluster.tasks() if t.job in ("ps", "worker")]
    return {task: cluster.address(task) for task in servers}
