"""Polls lost workers for requests to rejoin, with one thread per worker."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from tfdist.local_update import rejoin
from tfdist.local_update.message import GoneError, SilentError, Transport
from tfdist.local_update.rejoin import RejoinRequest


class RejoinListener:
    """The requests of workers that were lost. Nobody who mixes models waits for one.

    `refusal` returns why a request cannot be granted, or ''. `pause`, in seconds, is
    between looks at a worker.
    """

    def __init__(
        self,
        transport: Transport,
        refusal: Callable[[RejoinRequest], str],
        pause: float = 0.5,
    ) -> None:
        self.refusal = refusal
        self._transport = transport
        self._pause = pause
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
        request = rejoin.chosen(open_, versions)
        if request is not None:
            self._answered.add(request.nonce)
        return request

    def _watch(self, worker: int) -> None:
        while worker in self._lost:
            # A session to a process that has ended would wait until its deadline.
            if not self._transport.is_gone(worker):
                with contextlib.suppress(GoneError, SilentError):
                    self._look(worker)
            time.sleep(self._pause)
        self._watched.discard(worker)

    def _look(self, worker: int) -> None:
        message = self._transport.read_aside(worker)
        if message is not None and message.begin == worker:
            self._requests[worker] = RejoinRequest.unpack(message.payload)
