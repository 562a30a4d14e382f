"""Workers that take part in a running program, and may join late or leave."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping

import tensorflow as tf

import tf_config
from tfdist.cluster.health import NO_ANSWER, problems

_log = logging.getLogger("tfdist")

_PAUSE_SECONDS = 0.5
_PROBE_SECONDS = 2.0


class Presence:
    """The workers that take part, and the connection to those that come.

    A worker is away before it has joined, and from its failure until it answers again.
    TensorFlow is not connected to `absent` workers yet; `connect` connects it to
    exactly those that it is given.
    """

    def __init__(
        self,
        servers: Mapping[tf_config.Task, str],
        absent: Collection[tf_config.Task],
        min_workers: int,
        connect: Callable[[Mapping[int, str]], None],
    ) -> None:
        self._servers = dict(servers)
        self._workers = [task for task in servers if task.job == "worker"]
        self._min_workers = min_workers
        self._connect = connect
        self._away = set(absent)
        self._connected = frozenset(self._workers) - self._away
        # One change at a time, and by one thread.
        self._changing = threading.Lock()

    @property
    def is_elastic(self) -> bool:
        """True if the program needs fewer workers than the cluster has."""
        return self._min_workers < len(self._workers)

    @property
    def away(self) -> frozenset[tf_config.Task]:
        """The workers that do not take part now."""
        return frozenset(self._away)

    @property
    def not_waited_for(self) -> frozenset[tf_config.Task]:
        """The workers whose silence is no fault: enough others take part."""
        away = self.away
        enough = len(self._workers) - len(away) >= self._min_workers
        return away if self.is_elastic and enough else frozenset()

    def describe(self) -> str:
        """Returns a line on who takes part, for the log."""
        names = ", ".join(str(task) for task in self._workers if task in self._away)
        return (
            f"training starts with {self._count()} (min_workers={self._min_workers}); "
            f"those that come later join it: {names}"
        )

    def rejoin(self, index: int, is_over: Callable[[], bool]) -> None:
        """Waits until a worker that is away answers, unless `is_over`; connects."""
        task = tf_config.Task("worker", index)
        self._away.add(task)
        pause = threading.Event()
        while not is_over():
            # Without the lock first: one that stays away must not delay the others.
            if self._problems([task]):
                if task in self._connected:
                    # Otherwise every newly traced function would be sent to it.
                    self._change()
            elif self._change(joining=task):
                _log.warning(
                    "%s at %s takes part in training: %s",
                    *(task, self._servers[task], self._count()),
                )
                return
            pause.wait(_PAUSE_SECONDS)

    def _change(self, joining: tf_config.Task | None = None) -> bool:
        """Connects TensorFlow to those who take part, if none makes that hang.

        Returns whether it did.
        """
        with self._changing:
            wanted = [
                task
                for task in self._servers
                if task == joining or task not in self._away
            ]
            # All, under the lock: since `rejoin` looked, another may have stopped.
            members = members_of(wanted, self._problems(wanted))
            if not members or not (joining is None or joining in members):
                return False
            try:
                self._connect({each.index: self._servers[each] for each in members})
            except tf.errors.OpError as error:
                # A server went away again.
                _log.warning("could not change the cluster: %s", error.message)
                return False
            self._connected = frozenset(members)
            if joining is not None:
                self._away.discard(joining)
            return True

    def _problems(
        self, tasks: Collection[tf_config.Task]
    ) -> Mapping[tf_config.Task, str]:
        return problems({each: self._servers[each] for each in tasks}, _PROBE_SECONDS)

    def _count(self) -> str:
        workers = len(self._workers)
        return f"{workers - len(self._away)} of {workers} workers"


def members_of(
    wanted: Collection[tf_config.Task], problems: Mapping[tf_config.Task, str]
) -> list[tf_config.Task]:
    """Decides which workers TensorFlow can connect to now without waiting.

    To change its cluster, TensorFlow asks each server of the new one, and waits for its
    answer without a deadline. A worker that has ended is left out: its next step fails,
    and it comes back in its turn. One that is only silent may be stopped or slow, with
    a step in flight, so nothing is changed until it answers or ends. Returns none while
    nothing may be changed.
    """
    for task, problem in problems.items():
        if task.job == "ps" or problem == NO_ANSWER:
            return []
    return [each for each in wanted if each.job == "worker" and each not in problems]
