"""Watches the peers of a synchronous task, and names those that are lost, or a lost ps."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist._support.errors import Error
from tfdist.cluster.health import problems
from tfdist.cluster.liveness.step_error import shortened

_PAUSE_SECONDS = 1.0
_PROBE_SECONDS = 2.0
_OF_A_LOST_TASK = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)
# After a failure there is time, and a peer that is only slow must not be blamed.
_LAST_PROBE_SECONDS = 10.0
# A server that refuses connections this many times, a pause apart, has exited.
_REFUSALS = 3


WHAT_TO_DO = (
    "Every step needs all workers: start the whole cluster again; with the launcher's "
    "--checkpoint_dir, or the callback keras.callbacks.BackupAndRestore, training resumes"
)


def _abort_collectives(message: str, is_back: Callable[[], bool]) -> bool:
    # Collectives stay aborted even if the peer comes back.
    _tf.abort_collectives(message)
    return False


class PeerLostError(Error, RuntimeError):
    """Another task exited or stopped responding, and no step is possible without it."""


@dataclass(eq=False)
class PeerWatch:
    """Probes every peer regularly.

    A collective waits forever for a peer that is stopped or cut off. When a peer does
    not respond for `timeout`, all collectives of this process are aborted, and the step
    that waits for the peer fails.

    Args:
        peers: The address of each other task of the cluster.
        timeout: How long a peer may be silent, in seconds.
        check: Raises an `OpError` if a task does not respond within a time, in seconds.
        give_up: Called when a peer is lost, in place of aborting. It receives a message
            and a function that returns whether the peer responds again; for a peer that
            has exited it returns False, even if another process took its address. It
            returns whether to continue watching.
    """

    peers: Mapping[tf_config.Task, str]
    timeout: float
    check: Callable[[tf_config.Task, float], None] = _tf.check_peer
    give_up: Callable[[str, Callable[[], bool]], bool] = _abort_collectives

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        threads = [
            threading.Thread(target=self._watch, args=(task,), daemon=True)
            for task in self.peers
        ]
        for thread in threads:
            thread.start()

    def stop(self) -> None:
        """Stops the watch."""
        self._stopped.set()

    def lost(self) -> list[str]:
        """Probes every peer once, and returns those that do not respond."""
        return unanswered(self.peers, self.check)

    def _watch(self, task: tf_config.Task) -> None:
        refusals, answered = 0, time.monotonic()
        while not self._stopped.wait(_PAUSE_SECONDS):
            problem = _problem(self.check, task)
            if problem is None:
                refusals, answered = 0, time.monotonic()
                continue
            silent = time.monotonic() - answered
            # A stopped or slow peer exceeds the deadline; all else is a refusal.
            refusals += not isinstance(problem, tf.errors.DeadlineExceededError)
            if refusals < _REFUSALS and silent < self.timeout:
                continue
            message = f"{task} at {self.peers[task]} does not answer"
            is_back = functools.partial(self._is_back, task, refusals >= _REFUSALS)
            if not self.give_up(message, is_back):
                return
            refusals, answered = 0, time.monotonic()

    def _is_back(self, task: tf_config.Task, had_ended: bool) -> bool:
        return not had_ended and _problem(self.check, task) is None


@contextlib.contextmanager
def naming_lost_peers(lost_peers: Callable[[], list[str]]) -> Iterator[None]:
    """Turns TensorFlow's error of a collective into one that names the lost task.

    Raises:
        PeerLostError: If a task is lost, in place of TensorFlow's error.
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
        # Keep the user's frames: a callback may have failed.
        raise problem.with_traceback(error.__traceback__) from None


def unanswered(
    peers: Mapping[tf_config.Task, str],
    check: Callable[[tf_config.Task, float], None] = _tf.check_peer,
) -> list[str]:
    """Probes every peer once, and returns those that do not respond, with addresses."""
    answers = {task: _Answer(check, task) for task in peers}
    return [
        f"{task} at {peers[task]}"
        for task, answer in answers.items()
        if answer.problem() is not None
    ]


class _Answer:
    """A probe of one peer, in its own thread, so that several probes run at once."""

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


def error_of_lost_ps(
    error: BaseException, servers: Mapping[tf_config.Task, str]
) -> PeerLostError | None:
    """Returns an error that names the lost ps, or None if every ps answers."""
    # An error of the program must not wait for probes.
    if not isinstance(error, _OF_A_LOST_TASK):
        return None
    every_ps = {task: at for task, at in servers.items() if task.job == "ps"}
    lost = problems(every_ps, _PROBE_SECONDS)
    if not lost:
        return None
    names = ", ".join(f"{task} at {servers[task]} {lost[task]}" for task in lost)
    return PeerLostError(
        f"{names}. The variables that it held are gone. Start the ps and this program "
        "again (python -m launch.local does so); with a checkpoint_dir, fit resumes "
        "from its latest checkpoint"
    )
