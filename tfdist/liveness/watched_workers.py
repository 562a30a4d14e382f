"""Workers that are servers of one chief: their health, while it calls them."""

import contextlib
from collections.abc import Callable, Mapping

import tensorflow as tf

import tf_config
from tfdist.cluster.health import NO_ANSWER, Server, problem_of
from tfdist.liveness.last_resort import LastResort
from tfdist.liveness.peers import WHAT_TO_DO, PeerWatch


class WatchedWorkers:
    """Probes the workers until it is stopped.

    One may fail to respond for `peer_timeout` seconds.
    """

    def __init__(
        self, addresses: Mapping[tf_config.Task, str], peer_timeout: float
    ) -> None:
        self._servers = {task: Server(address) for task, address in addresses.items()}
        self._last_resort = LastResort()
        self._watch = PeerWatch(addresses, peer_timeout, self._check, self._lost)

    def lost(self) -> list[str]:
        """Probes the workers and returns those that do not respond."""
        return self._watch.lost()

    def stop(self) -> None:
        """Stops probing."""
        self._watch.stop()

    def call(self) -> contextlib.AbstractContextManager[None]:
        """A call that needs the workers: if one is lost, it fails or the process exits."""
        return self._last_resort.call()

    def _lost(self, what: str, is_back: Callable[[], bool]) -> bool:
        return self._last_resort.lost(f"PeerLostError: {what}. {WHAT_TO_DO}", is_back)

    def _check(self, worker: tf_config.Task, seconds: float) -> None:
        problem = problem_of(self._servers[worker].ask(seconds))
        if problem == NO_ANSWER:
            raise tf.errors.DeadlineExceededError(None, None, problem)
        if problem:
            raise tf.errors.UnavailableError(None, None, problem)
