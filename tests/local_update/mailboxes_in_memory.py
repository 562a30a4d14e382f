"""Mailboxes of several workers in one process, each of which is a thread."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfdist.local_update.exchange import Exchange
from tfdist.local_update.members import Members
from tfdist.local_update.message import LEFT, NOTHING, GoneError, Message, SilentError
from tfdist.local_update.mix import Mix


class Dies(Exception):
    """What a worker that is to die raises, when it has published its last message."""


@dataclasses.dataclass
class Death:
    """When a worker dies, and what the others have read by then.

    Attributes:
        messages: How many it publishes.
        has_read: How many of its last two each other worker has read: 0, 1 or 2.
        keys: Those of what it has published.
    """

    messages: int
    has_read: Mapping[int, int]
    keys: list[int] = dataclasses.field(default_factory=list)

    def is_read(self, reader: int, key: int) -> bool:
        """Whether a worker reads a message, rather than find its sender dead."""
        read = self.keys[: self.messages - 2 + self.has_read.get(reader, 2)]
        return max(read, default=NOTHING) >= key


class InMemory:
    """A `Transport`, as `tfdist.local_update.mailbox.Mailboxes` is one.

    Args:
        slots: The messages of all workers, by worker and parity of their key.
        me: The index of this worker.
        gone: Those that have ended.
        silent: Those that do not answer.
        deaths: When workers die, by their index.
    """

    def __init__(
        self, slots: dict, me: int, gone: set, silent: set, deaths: dict
    ) -> None:
        self._slots, self._me, self._gone, self._silent = slots, me, gone, silent
        self._deaths = deaths

    def publish(self, message: Message) -> None:
        self._slots[self._me, message.key % 2] = message
        death = self._deaths.get(self._me)
        if death is None:
            return
        death.keys.append(message.key)
        if len(death.keys) == death.messages:
            self._gone.add(self._me)
            raise Dies

    def read(self, worker: int, key: int, begin: int, size: int) -> Message | None:
        if worker in self._silent:
            raise SilentError
        is_gone, death = worker in self._gone, self._deaths.get(worker)
        is_in_time = death.is_read(self._me, key) if death else not is_gone
        if not is_in_time:
            if is_gone:
                raise GoneError
            # It waits until the sender is dead: so which thread is faster does not matter.
            return None
        last = self._slots.get((worker, 1 - key % 2))
        message = self._slots.get((worker, key % 2))
        if message is None or message.key < key:
            message = last
            if message is None or message.key < LEFT:
                return None
        end = len(message.payload) if size < 0 else begin + size
        payload = np.array(message.payload[begin:end])
        return dataclasses.replace(message, payload=payload)

    def is_gone(self, worker: int) -> bool:
        return worker in self._gone

    def publish_aside(self, message: Message) -> None:
        self._slots[self._me, "aside"] = message

    def read_aside(self, worker: int, with_payload: bool = True) -> Message | None:
        self._check_there(worker)
        message = self._slots.get((worker, "aside"))
        return message if message is not None and message.key != NOTHING else None

    def newest(self, worker: int) -> Message | None:
        self._check_there(worker)
        found = [self._slots.get((worker, parity)) for parity in range(2)]
        messages = [each for each in found if each is not None]
        return max(messages, key=lambda each: each.key, default=None)

    def forget(self, worker: int) -> None:
        pass

    def _check_there(self, worker: int) -> None:
        if worker in self._gone:
            raise GoneError
        if worker in self._silent:
            raise SilentError


class Crew:
    """Some workers, the exchanges between them, and who is lost.

    Args:
        workers: How many.
    """

    def __init__(self, workers: int) -> None:
        slots: dict = {}
        self.gone: set[int] = set()
        self.silent: set[int] = set()
        self._deaths: dict[int, Death] = {}
        self._slots, self._workers = slots, workers
        self.exchanges = [self.start(i) for i in range(workers)]

    def transport(self, worker: int) -> InMemory:
        """The mailboxes, as a worker sees them."""
        return InMemory(self._slots, worker, self.gone, self.silent, self._deaths)

    def start_again(self, worker: int) -> Exchange:
        """The exchange of a worker in a new process, which begins with empty mailboxes."""
        for place in (0, 1, "aside"):
            self._slots.pop((worker, place), None)
        self._deaths.pop(worker, None)
        self.gone.discard(worker)
        return self.start(worker)

    def start(self, worker: int) -> Exchange:
        """The exchange of a worker that has just started."""
        transport = self.transport(worker)
        names = [f"worker:{i}" for i in range(self._workers)]
        members = Members(worker, self._workers)
        return Exchange(transport, members, names, timeout=1.0)

    def let_die(self, worker: int, messages: int, has_read: tuple[int, ...]) -> None:
        """Has a worker die when it has published some messages.

        Args:
            worker: The one that dies.
            messages: How many it publishes.
            has_read: How many of the last two each of the others has read, in their order.
        """
        others = [i for i in range(self._workers) if i != worker]
        self._deaths[worker] = Death(messages, dict(zip(others, has_read, strict=True)))

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


def train(mix: Mix, by: Any) -> None:
    """Takes a local step that adds a number, or a vector, to the model."""
    mix.vector.write(mix.vector.read() + np.float32(by))
    mix.step_done()
