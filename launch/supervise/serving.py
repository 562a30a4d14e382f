"""Runs a server for as long as its chief is there.

On an engine that waits for every task of a job, a server that serves until it is killed
would keep the job from ending.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType

from launch.job.plan import TaskPlan
from launch.remote import host
from launch.supervise.policy import exit_status
from tf_config import split_address

PATIENCE = 60.0
"""Seconds that a chief may be away: it may have been restarted."""

_INTERVAL = 2.0  # seconds
_KILL_TIMEOUT = 10.0


class ChiefPresence:
    """The presence of a chief, from the outcome of connections to it."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._seen: float | None = None

    def is_over(self, is_there: bool, now: float) -> bool:
        """Takes an observation; returns whether the chief has been away for too long.

        >>> chief = ChiefPresence(patience=60)
        >>> [chief.is_over(*each) for each in [(False, 0), (True, 99), (False, 159)]]
        [False, False, False]
        >>> chief.is_over(False, 160)
        True
        """
        if is_there:
            self._seen = now
        return self._seen is not None and now - self._seen > self._patience


def run(
    plan: TaskPlan,
    environ: Mapping[str, str],
    chief: str,
    patience: float = PATIENCE,
    notice: Callable[[str], None] = print,
) -> int:
    """Runs a server until it ends, or until its chief has come and gone.

    The chief listens on its `host:port` while its program runs, and may be away for
    `patience` seconds. Returns the server's exit status, or 0 if the chief has gone.
    """
    server = subprocess.Popen(
        plan.argv,
        env=dict(environ),
        preexec_fn=partial(host.die_with_parent, os.getpid()),
    )

    def forward(signum: int, frame: FrameType | None) -> None:
        server.send_signal(signum)

    signums = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(signum, forward) for signum in signums]
    try:
        presence = ChiefPresence(patience)
        while not presence.is_over(_accepts(chief), time.monotonic()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return exit_status(server.wait(_INTERVAL))
        notice(f"the chief at {chief} has gone: ending this server")
        server.terminate()
        try:
            server.wait(_KILL_TIMEOUT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        return 0
    finally:
        for signum, handler in zip(signums, before, strict=True):
            signal.signal(signum, handler)


def _accepts(address: str) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(split_address(address), _INTERVAL).close()
        return True
    return False
