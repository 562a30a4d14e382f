"""Workers that are servers of one chief: their health, while it calls them.

If one is lost, and the chief's call cannot be interrupted, the process exits.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import tensorflow as tf

import tf_config
from tf_config.contract import EXIT_STALLED
from tfdist.cluster.health import NO_ANSWER, StatusConnection, problem_of
from tfdist.cluster.liveness.peers import WHAT_TO_DO, PeerWatch
from tfdist.cluster.liveness.watchdog import end_process


@dataclass(eq=False)
class LastResort:
    """Exits the process if a call continues although a peer that it needs is lost.

    Most of TensorFlow's waits fail when a peer exits. Two kinds do not: waits for a
    process that is stopped, and waits for data sent to a peer before a step. The call
    may take `seconds` to fail by itself.
    """

    seconds: float = 15.0
    end: Callable[[int], None] = os._exit

    def __post_init__(self) -> None:
        self._depth = 0
        self._calls = 0
        self._is_called = threading.Event()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Marks a call of the main thread that needs all peers. Calls may nest."""
        # A nested call is measured as part of the outer one.
        self._calls += not self._depth
        self._depth += 1
        self._is_called.set()
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._is_called.clear()

    def lost(self, text: str, is_back: Callable[[], bool]) -> bool:
        """Exits the process once a call has waited too long for the lost peer.

        A peer may be stopped and continue while no call needs it. Returns True once it
        is back.
        """
        while True:
            self._is_called.wait()
            # A later call has its own time: only the one seen now is measured.
            call = self._calls
            time.sleep(self.seconds)
            if is_back():
                return True
            if self._is_called.is_set() and self._calls == call:
                end_process(text, EXIT_STALLED, self.end)
                return False


class WatchedWorkers(PeerWatch):
    """Probes the workers until it is stopped.

    One may fail to respond for `peer_timeout` seconds.
    """

    def __init__(
        self, addresses: Mapping[tf_config.Task, str], peer_timeout: float
    ) -> None:
        self._servers = {
            task: StatusConnection(address) for task, address in addresses.items()
        }
        self._last_resort = LastResort()
        super().__init__(addresses, peer_timeout, self._check, self._lost)

    def call(self) -> contextlib.AbstractContextManager[None]:
        """A call that needs the workers: if one is lost, it fails or the process exits."""
        return self._last_resort.call()

    def _lost(self, what: str, is_back: Callable[[], bool]) -> bool:
        return self._last_resort.lost(f"PeerLostError: {what}. {WHAT_TO_DO}", is_back)

    def _check(self, worker: tf_config.Task, seconds: float) -> None:
        # In the terms of TensorFlow's own check, which `PeerWatch` has by default.
        problem = problem_of(self._servers[worker].ask(seconds))
        if problem == NO_ANSWER:
            raise tf.errors.DeadlineExceededError(None, None, problem)
        if problem:
            raise tf.errors.UnavailableError(None, None, problem)
