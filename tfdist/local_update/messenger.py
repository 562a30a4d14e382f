"""A worker's messages to the others, who is lost, and who is back.

It works on any `Transport`, with numpy alone. All workers exchange in the same order. So
one exchange at a time, in the order in which this worker began them: what the main thread
exchanges, such as the logs of an epoch, waits for the mix that began before it.
"""

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from tfdist._support.errors import Error
from tfdist.local_update.members import Members
from tfdist.local_update.message import (
    LEFT,
    NOTHING,
    Call,
    Message,
    SilentError,
    Transport,
    header_bytes,
    pack,
)
from tfdist.local_update.reads import Range, Reads
from tfdist.local_update.rejoin import RejoinRequest

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S", bound="Messenger")

_log = logging.getLogger("tfdist")

NO_BYTES = np.zeros(0, np.uint8)


class GivenUpError(Error, RuntimeError):
    """The other workers continue without this one."""


class OutOfStepError(Error, RuntimeError):
    """A worker has sent something else than what the others wait for."""


class TooFewWorkersError(Error, RuntimeError):
    """Fewer workers than `min_workers` take part."""


def in_turn(
    method: Callable[Concatenate[_S, _P], _T],
) -> Callable[Concatenate[_S, _P], _T]:
    """Makes a method wait for those that began before it in other threads."""

    @functools.wraps(method)
    def waits(self: _S, *args: Any, **kwargs: Any) -> _T:
        with self.turn:
            return method(self, *args, **kwargs)

    return waits


@dataclass(eq=False)
class Messenger:
    """Publishes and collects messages under keys that all workers count alike.

    `timeout`, in seconds, is for the log alone.

    Attributes:
        turn: Held while a method marked `in_turn` runs.
        received_bytes: Counted where messages arrive, headers included.
        is_quiet: Whether a worker that has ended is expected, and not reported.
        fit: The number of the `fit` that this worker is in, or was in last.
        needed: The number of workers without which this one does not continue.
    """

    transport: Transport
    members: Members
    names: Sequence[str]
    timeout: float

    def __post_init__(self) -> None:
        self.turn = threading.RLock()
        self._next_key = 0
        self._last_key = NOTHING
        self.received_bytes = 0
        self.is_quiet = False
        self.fit = 0
        self.needed = 1
        self._reader: int | None = None  # The reader of what was handed over.

    def in_background(self, function: Callable[[], _T]) -> "Future[_T]":
        """Calls a function in a thread; its turn begins before this returns."""
        result: Future[_T] = Future()
        has_turn = threading.Event()

        def run() -> None:
            with self.turn:
                has_turn.set()
                try:
                    result.set_result(function())
                except BaseException as error:
                    result.set_exception(error)

        # A daemon: a peer that does not answer must not keep this process from exiting.
        threading.Thread(target=run, name="mix", daemon=True).start()
        has_turn.wait()
        return result

    def leave(self) -> None:
        """Asks the others to continue without this worker."""
        self.members.lose(self.members.me)
        versions = list(self.members.versions)
        # In the place of the next message: another worker may still read the last one.
        key = LEFT + (self._last_key + 1) % 2
        self.transport.publish(Message(key, 0, versions, NO_BYTES))

    def _answer(
        self, request: RejoinRequest, info: object, arrays: Sequence[np.ndarray]
    ) -> None:
        versions = list(self.members.versions)
        payload = pack(info, arrays)
        self.transport.publish_aside(
            Message(request.nonce, request.worker, versions, payload)
        )

    def _publish_next(self, call: Call, payload: np.ndarray, begin: int = 0) -> int:
        key = self._next_key
        self._next_key += 1
        self._publish(key, call, payload, begin)
        return key

    def _publish(
        self, key: int, call: Call, payload: np.ndarray, begin: int = 0
    ) -> None:
        self._check_not_given_up()
        versions = list(self.members.versions)
        self._last_key = key
        message = Message(key, begin, versions, payload, self.fit, call)
        self.transport.publish(message)

    def _collect(
        self, key: int, call: Call, wanted: Mapping[int, Range], newer: bool = False
    ) -> dict[int, Message]:
        """Waits for a message of each of some workers, unless they are lost.

        Raises:
            OutOfStepError: If one is of another call, or of another `fit`.
        """
        out_of_step: list[int] = []
        reads = Reads(self.transport, key, wanted, self._is_old)
        found: dict[int, Message] = {}
        for worker, result in reads.results(self._notice):
            if isinstance(result, Message):
                self.received_bytes += len(result.payload)
                self.received_bytes += header_bytes(len(self.names))
                self._hear(result)
                is_same = (result.fit, result.call) == (self.fit, call)
                if result.key == key and not is_same:
                    out_of_step.append(worker)
                elif is_same and (result.key == key or newer):
                    found[worker] = result
            else:
                self._lose(worker, result)
        if self._reader in found:
            # As large as a model and its optimizer: nobody needs it any more.
            self._reader = None
            versions = list(self.members.versions)
            self.transport.publish_aside(Message(NOTHING, 0, versions, NO_BYTES))
        self._check_not_given_up()
        self._check_enough()
        if out_of_step:
            raise OutOfStepError(
                f"{', '.join(self.names[each] for each in sorted(out_of_step))} did not "
                "do what this worker does next: one has ended its fit, or has called fit "
                "again, while the other still trains. All workers must take equally many "
                "steps. A callback that stops training must decide from what is the same "
                "on all workers: under Mean() the logs of an epoch are, under Gossip() "
                "each worker has its own"
            )
        return dict(sorted(found.items()))

    def _check_not_given_up(self) -> None:
        if self.members.is_given_up:
            raise GivenUpError(
                f"the other workers go on without {self.names[self.members.me]}: its fit "
                f"failed, it did not answer for {self.timeout:g} s (peer_timeout), or its "
                "process was started again. Start its process again to have it back: in a "
                "fit that runs, a worker of tfdist.LocalUpdateStrategy takes part from the "
                "next mix on. Others need the whole cluster to be started again; with the "
                "callback keras.callbacks.BackupAndRestore, training resumes from the "
                "chief's backup"
            )

    def _check_enough(self) -> None:
        here = self.members.present
        if len(here) < self.needed and not self.is_quiet:
            gone = [name for i, name in enumerate(self.names) if i not in here]
            raise TooFewWorkersError(
                f"{', '.join(gone)} left: {len(here)} of {len(self.names)} workers take "
                f"part, and {self.needed} are needed (min_workers). Start the job again; "
                "with the callback keras.callbacks.BackupAndRestore, training resumes "
                "from the chief's backup"
            )

    def _hear(self, message: Message) -> None:
        before = self.members.present
        self.members.hear(message.versions)
        for worker in set(before) - set(self.members.present) - {self.members.me}:
            self._report(worker, "has left")
        for worker in set(self.members.present) - set(before) - {self.members.me}:
            self._welcome(worker)

    def _is_old(self, worker: int, message: Message) -> bool:
        # It says there that it has left. Since then it came back, and has sent nothing yet.
        return (
            message.key >= LEFT
            and message.versions[worker] < self.members.versions[worker]
        )

    def _welcome(self, worker: int) -> None:
        # The session was one with the process that has ended.
        self.transport.forget(worker)
        self._report(worker, "is back")

    def _lose(self, worker: int, why: Exception) -> None:
        if worker not in self.members.present:
            return
        self.members.lose(worker)
        silent = f"has not answered for {self.timeout:g} s (peer_timeout)"
        self._report(worker, silent if isinstance(why, SilentError) else "has ended")

    def _report(self, worker: int, what: str) -> None:
        if not self.is_quiet:
            _log.warning(
                "%s %s: training goes on with %d of %d workers",
                self.names[worker],
                what,
                len(self.members.present),
                len(self.names),
            )

    def _notice(self, workers: Sequence[int], seconds: float) -> None:
        _log.warning(
            "waiting for %s for %.0f s, to mix models. A worker that does not answer at "
            "all is given up after %g s (peer_timeout)",
            ", ".join(self.names[each] for each in workers),
            seconds,
            self.timeout,
        )
