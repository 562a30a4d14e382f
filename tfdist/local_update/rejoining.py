"""Return of a restarted worker to the exchanges of the others."""

import dataclasses
import enum
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.local_update.exchange import Exchange
from tfdist.local_update.message import (
    LEFT,
    GoneError,
    Message,
    SilentError,
    Transport,
    unpack,
)
from tfdist.local_update.rejoin import RejoinError, RejoinRequest

_log = logging.getLogger("tfdist")

_PAUSE = 0.1  # seconds
_NOTICE_SECONDS = 15.0
# Looks in a row at which nobody was there, after which the others have ended.
_LOOKS = 20

State = tuple[Any, list[np.ndarray]]
"""The state that a worker hands over: plain data, and the bytes of arrays."""


def is_expected(transport: Transport, me: int, workers: int) -> bool:
    """Returns True if the others exchange models already, and have lost this worker.

    In its first exchange, each worker waits for a message of all. So a worker with a second
    message has had one of this worker: of a process that has ended since.
    """
    for worker in range(workers):
        if worker == me or transport.is_gone(worker):
            continue
        newest = _newest(transport, worker)
        if newest is not None and (0 < newest.key < LEFT or newest.versions[me]):
            return True
    return False


class Move(enum.Enum):
    """The next move of a restarted worker."""

    LEAVE = "tell the others that the process which they wait for has ended"
    ASK = "ask to take part again"
    WAIT = "wait for the answer"


def next_move(version: int, asked: int | None) -> Move:
    """Decides the next move of a restarted worker, by the version it has asked for.

    >>> next_move(0, None).name  # Nobody has noticed that it was started again.
    'LEAVE'
    >>> next_move(1, None).name, next_move(1, 2).name, next_move(2, 2).name
    ('ASK', 'WAIT', 'WAIT')
    """
    if version % 2 == 0:
        return Move.WAIT if version == asked else Move.LEAVE
    return Move.WAIT if asked == version + 1 else Move.ASK


@dataclass(eq=False)
class Rejoining:
    """A worker that was started again, until it takes part.

    `pause`, in seconds, is between looks at the others.
    """

    exchange: Exchange
    transport: Transport
    names: Sequence[str]
    pause: float = _PAUSE

    def __post_init__(self) -> None:
        self._members = self.exchange.members
        self._lead: int | None = None
        self._asked: int | None = None

    def enter(self, fit: int, settings: str) -> State:
        """Asks to take part until the worker that leads has handed over its state.

        There is no deadline while that worker answers: it mixes when it has taken its
        local steps. A notice says for whom this waits.

        Raises:
            RejoinError: If the others have ended, or say why it cannot.
        """
        # The random number is the key of its messages, so it stays below `LEFT`.
        request = RejoinRequest(
            self._members.me, random.getrandbits(61) + 1, 0, fit, settings
        )
        began = noticed = time.monotonic()
        misses = 0
        while misses < _LOOKS:
            lead, version = self._look()
            misses = misses + 1 if lead is None else 0
            if lead is not None:
                if lead != self._lead:  # The last one may not have answered.
                    self._lead, self._asked = lead, None
                self._move(version, request)
                if state := self._answer(lead, request.nonce):
                    return state
            if time.monotonic() - noticed > _NOTICE_SECONDS:
                noticed = time.monotonic()
                self._notice(noticed - began)
            time.sleep(self.pause)
        raise self._error(
            "no worker that takes part answers: the others have ended. Start the whole "
            "cluster again"
        )

    def _look(self) -> tuple[int | None, int]:
        """Returns which worker leads, and this worker's version as that one knows it."""
        heads = {}
        for worker in self._members.present:
            if worker != self._members.me and not self.transport.is_gone(worker):
                newest = _newest(self.transport, worker)
                if newest is not None:
                    heads[worker] = newest.versions
        for versions in heads.values():
            self._members.hear(versions)
        present = [each for each in heads if each in self._members.present]
        lead = min(present, default=None)
        return lead, heads[lead][self._members.me] if lead is not None else 0

    def _move(self, version: int, request: RejoinRequest) -> None:
        move = next_move(version, self._asked)
        if move is Move.LEAVE:
            self.exchange.leave()
            self._asked = None
        elif move is Move.ASK:
            self._asked = version + 1
            asked = dataclasses.replace(request, version=self._asked)
            versions = list(self._members.versions)
            self.transport.publish_aside(
                Message(request.nonce, request.worker, versions, asked.pack())
            )

    def _answer(self, lead: int, nonce: int) -> State | None:
        try:
            answer = self.transport.read_aside(lead, with_payload=False)
            if answer is None or answer.begin != self._members.me:
                return None
            if answer.key != nonce:
                if answer.versions[self._members.me] == self._asked:
                    # Another process asked before, and was let in, but has ended.
                    self.exchange.leave()
                    self._asked = None
                return None
            answer = self.transport.read_aside(lead)
        except (GoneError, SilentError):
            return None
        if answer is None or answer.key != nonce:
            return None
        info, arrays = unpack(answer.payload)
        if "refused" in info:
            raise self._error(info["refused"])
        self.exchange.resume(info["exchange"])
        _log.warning(
            "%s takes part again: training goes on with %d of %d workers",
            self.names[self._members.me],
            len(self._members.present),
            len(self.names),
        )
        return info, arrays

    def _error(self, why: str) -> RejoinError:
        return RejoinError(
            f"{self.names[self._members.me]} was started again, and cannot take part in "
            f"the fit of the others: {why}; with the callback "
            "keras.callbacks.BackupAndRestore, training resumes from the chief's backup"
        )

    def _notice(self, seconds: float) -> None:
        lead = "the others" if self._lead is None else self.names[self._lead]
        _log.warning(
            "%s was started again. It has waited for %.0f s for %s to mix models in fit, "
            "which is when it can take part again",
            self.names[self._members.me],
            seconds,
            lead,
        )


def _newest(transport: Transport, worker: int) -> Message | None:
    try:
        return transport.newest(worker)
    except (GoneError, SilentError):
        return None
