"""Whether the other tasks are there: at the start, and until the end."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist.liveness.step_error import shortened

_PAUSE_SECONDS = 1.0
_PROBE_SECONDS = 2.0
# Once something has failed there is time, and who is only slow is not to blame.
_LAST_PROBE_SECONDS = 10.0
# A server that refuses connections this often, a pause apart, has ended.
_REFUSALS = 3


WHAT_TO_DO = (
    "Every step needs all workers: start the whole cluster again; with the callback "
    "keras.callbacks.BackupAndRestore, training goes on from its last backup"
)


def _abort_collectives(message: str, is_back: Callable[[], bool]) -> bool:
    # They stay aborted, whoever comes back.
    _tf.abort_collectives(message)
    return False


class PeerLostError(RuntimeError):
    """Another task ended, or stopped answering, and no step is possible without it."""


class PeerWatch:
    """Asks every peer, again and again, whether it is alive.

    A collective waits for ever for a peer that is stopped or cut off. When one does
    not answer for `timeout`, all collectives of this process are aborted, and the
    step that waits for it fails.

    Args:
        peers: The address of each other task of the cluster.
        timeout: How long a peer may not answer, in seconds.
        check: Raises an `OpError` if a task does not answer within a time, in seconds.
        give_up: What to do without a peer instead. It is given a message, and a
            function that says whether the peer answers again; one that has ended never
            does, whoever listens at its address since. It returns whether to watch on.
    """

    def __init__(
        self,
        peers: Mapping[tf_config.Task, str],
        timeout: float,
        check: Callable[[tf_config.Task, float], None] = _tf.check_peer,
        give_up: Callable[[str, Callable[[], bool]], bool] = _abort_collectives,
    ) -> None:
        self._peers = peers
        self._timeout = timeout
        self._check = check
        self._give_up = give_up
        self._stopped = threading.Event()
        threads = [
            threading.Thread(target=self._watch, args=(task,), daemon=True)
            for task in peers
        ]
        for thread in threads:
            thread.start()

    def stop(self) -> None:
        """Watches no longer."""
        self._stopped.set()

    def lost(self) -> list[str]:
        """Asks every peer once, and returns those that do not answer."""
        return unanswered(self._peers, self._check)

    def _watch(self, task: tf_config.Task) -> None:
        refusals, answered = 0, time.monotonic()
        while not self._stopped.wait(_PAUSE_SECONDS):
            problem = _problem(self._check, task)
            if problem is None:
                refusals, answered = 0, time.monotonic()
                continue
            silent = time.monotonic() - answered
            refusals += not isinstance(problem, tf.errors.DeadlineExceededError)
            if refusals < _REFUSALS and silent < self._timeout:
                continue
            message = f"{task} at {self._peers[task]} does not answer"
            is_back = functools.partial(self._is_back, task, refusals >= _REFUSALS)
            if not self._give_up(message, is_back):
                return
            refusals, answered = 0, time.monotonic()

    def _is_back(self, task: tf_config.Task, had_ended: bool) -> bool:
        return not had_ended and _problem(self._check, task) is None


@contextlib.contextmanager
def explained(lost_peers: Callable[[], list[str]]) -> Iterator[None]:
    """Says in a few lines why a collective failed, and names a task that is gone.

    Args:
        lost_peers: Returns the tasks that do not answer.

    Raises:
        PeerLostError: If one is gone, instead of TensorFlow's error.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if lost := lost_peers():
            problem: Exception = PeerLostError(
                f"{', '.join(lost)} ended or does not answer. {WHAT_TO_DO}"
            )
        else:
            problem = shortened(error)
        # With the user's own frames: a callback may have failed.
        raise problem.with_traceback(error.__traceback__) from None


def unanswered(
    peers: Mapping[tf_config.Task, str],
    check: Callable[[tf_config.Task, float], None] = _tf.check_peer,
) -> list[str]:
    """Asks every peer once, and returns those that do not answer, with their address."""
    answers = {task: _Answer(check, task) for task in peers}
    return [
        f"{task} at {peers[task]}"
        for task, answer in answers.items()
        if answer.problem() is not None
    ]


class _Answer:
    """What a peer answers, asked in a thread of its own."""

    def __init__(
        self, check: Callable[[tf_config.Task, float], None], task: tf_config.Task
    ) -> None:
        self._problem: tf.errors.OpError | None = None

        def ask() -> None:
            self._problem = _problem(check, task, _LAST_PROBE_SECONDS)

        self._thread = threading.Thread(target=ask, daemon=True)
        self._thread.start()

    def problem(self) -> tf.errors.OpError | None:
        self._thread.join()
        return self._problem


def _problem(
    check: Callable[[tf_config.Task, float], None],
    task: tf_config.Task,
    seconds: float = _PROBE_SECONDS,
) -> tf.errors.OpError | None:
    try:
        check(task, seconds)
    except tf.errors.OpError as error:
        return error
    return None
