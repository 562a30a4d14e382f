"""Requests of lost workers to return, and the decisions of the lead about them.

The worker asks until the lead has read its request. The lead tells the others in the
message of a mix, and from the next exchange on all of them count the worker again. Then
the lead hands over its state, and the worker continues from there.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfdist._support.errors import Error
from tfdist.local_update.message import (
    GoneError,
    SilentError,
    Transport,
    pack,
    unpack,
)


class RejoinError(Error, RuntimeError):
    """A restarted worker cannot take part in the others' exchanges."""


@dataclasses.dataclass(frozen=True)
class RejoinRequest:
    """The request of a restarted worker to rejoin.

    Attributes:
        worker: Its index.
        nonce: The number of this process, at random: the answer names it.
        version: The version that it would have when it is back: see `members.Members`.
        fit: The number of this call of `fit` in its script, from 1.
        settings: How its strategy mixes models, in words.
    """

    worker: int
    nonce: int
    version: int
    fit: int
    settings: str

    def pack(self) -> np.ndarray:
        """Returns it as uint8."""
        return pack(dataclasses.asdict(self), [])

    @classmethod
    def unpack(cls, payload: np.ndarray) -> "RejoinRequest":
        """Returns the request that these bytes are."""
        return cls(**unpack(payload)[0])


def chosen(
    requests: Mapping[int, RejoinRequest], versions: Sequence[int]
) -> RejoinRequest | None:
    """Decides which worker comes back next: one at a time, the first that has asked."""
    for worker, request in sorted(requests.items()):
        # Any other version is that of an earlier time at which it was lost.
        if versions[worker] % 2 and request.version == versions[worker] + 1:
            return request
    return None


def refusal(request: RejoinRequest, fit: int, settings: str) -> str:
    """Returns why a worker cannot take part again, or '' if it can."""
    if request.settings != settings:
        return (
            f"its LocalUpdateStrategy has {request.settings}, and that of the others "
            f"{settings}. Start it with the same arguments as they were"
        )
    if request.fit != fit:
        return (
            f"the others are in their call number {fit} of fit, and it is in number "
            f"{request.fit}: a script starts from its first call, so a worker can come "
            "back during that one alone. Start the whole cluster again"
        )
    return ""


@dataclass(eq=False)
class RejoinListener:
    """The requests of workers that were lost. Nobody who mixes models waits for one.

    `refusal` returns why a request cannot be granted, or ''. `pause`, in seconds, is
    between looks at a worker.
    """

    transport: Transport
    refusal: Callable[[RejoinRequest], str]
    pause: float = 0.5

    def __post_init__(self) -> None:
        self._lost: set[int] = set()
        self._watched: set[int] = set()
        self._requests: dict[int, RejoinRequest] = {}
        self._answered: set[int] = set()

    def next(self, versions: Sequence[int]) -> RejoinRequest | None:
        """Returns the request of a worker that may ask, the first time it is seen."""
        # Another set, not a change of this one: the threads look into it.
        self._lost = {i for i, version in enumerate(versions) if version % 2}
        for worker in self._lost - self._watched:
            self._watched.add(worker)
            threading.Thread(target=self._watch, args=(worker,), daemon=True).start()
        found = dict(self._requests)
        open_ = {i: r for i, r in found.items() if r.nonce not in self._answered}
        request = chosen(open_, versions)
        if request is not None:
            self._answered.add(request.nonce)
        return request

    def _watch(self, worker: int) -> None:
        while worker in self._lost:
            # A session to a process that has ended would wait until its deadline.
            if not self.transport.is_gone(worker):
                with contextlib.suppress(GoneError, SilentError):
                    self._look(worker)
            time.sleep(self.pause)
        self._watched.discard(worker)

    def _look(self, worker: int) -> None:
        message = self.transport.read_aside(worker)
        if message is not None and message.begin == worker:
            self._requests[worker] = RejoinRequest.unpack(message.payload)
