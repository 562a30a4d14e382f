"""Mailboxes of several workers in one process, each of which is a thread."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdist.local_update.exchange import Exchange
from tfdist.local_update.members import Members
from tfdist.local_update.message import LEFT, Message
from tfdist.local_update.transport import GoneError, SilentError


class InMemory:
    """A `Transport`, as `tfdist.local_update.mailbox.Mailboxes` is one.

    Args:
        slots: The messages of all workers, by worker and parity of their key.
        me: The index of this worker.
        gone: Those that have ended.
        silent: Those that do not answer.
    """

    def __init__(self, slots: dict, me: int, gone: set, silent: set) -> None:
        self._slots, self._me, self._gone, self._silent = slots, me, gone, silent

    def publish(self, message: Message) -> None:
        self._slots[self._me, message.key % 2] = message

    def read(self, worker: int, key: int, begin: int, size: int) -> Message | None:
        if worker in self._silent:
            raise SilentError
        if worker in self._gone:
            raise GoneError
        last = self._slots.get((worker, 1 - key % 2))
        message = self._slots.get((worker, key % 2))
        if message is None or message.key < key:
            message = last
            if message is None or message.key < LEFT:
                return None
        end = len(message.payload) if size < 0 else begin + size
        payload = np.array(message.payload[begin:end])
        return Message(message.key, message.begin, message.versions, payload)

    def is_gone(self, worker: int) -> bool:
        return worker in self._gone


class Crew:
    """Some workers, the exchanges between them, and who is lost.

    Args:
        workers: How many.
    """

    def __init__(self, workers: int) -> None:
        slots: dict = {}
        self.gone: set[int] = set()
        self.silent: set[int] = set()
        self._slots, self._workers = slots, workers
        self.exchanges = [self.start(i) for i in range(workers)]

    def start(self, worker: int) -> Exchange:
        """The exchange of a worker that has just started."""
        transport = InMemory(self._slots, worker, self.gone, self.silent)
        names = [f"worker:{i}" for i in range(self._workers)]
        members = Members(worker, self._workers)
        return Exchange(transport, members, names, timeout=1.0)

    def run(self, function: Callable[[int, Exchange], Any], timeout: float = 20.0):
        """What `function(worker, its exchange)` returns for each that is not lost."""
        found: dict[int, Any] = {}

        def call(worker: int) -> None:
            try:
                found[worker] = function(worker, self.exchanges[worker])
            except Exception as error:
                found[worker] = error

        running = [
            (i, threading.Thread(target=call, args=(i,), daemon=True))
            for i in range(len(self.exchanges))
            if i not in self.gone | self.silent
        ]
        for _, thread in running:
            thread.start()
        for _, thread in running:
            thread.join(timeout)
        assert set(found) == {i for i, _ in running}, "a worker hangs"
        for each in found.values():
            if isinstance(each, Exception):
                raise each
        return found
