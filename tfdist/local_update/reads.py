"""Reads from several mailboxes at once, until each message is there or its sender is lost."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tfdist.local_update.message import GoneError, Message, SilentError, Transport

_log = logging.getLogger("tfdist")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05  # seconds
_CHECK_SECONDS = 1.0
_NOTICE_SECONDS = 15.0
# Refused connections, one second apart, after which a worker has ended.
_REFUSALS = 2

Range = tuple[int, int]
"""The first byte of a payload to read, and how many; -1 for the rest."""


class Reads:
    """Reads of one message each, every one in a thread of its own.

    `is_old` tells a message from before its worker was started again.
    """

    def __init__(
        self,
        transport: Transport,
        key: int,
        wanted: Mapping[int, Range],
        is_old: Callable[[int, Message], bool],
    ) -> None:
        self._transport = transport
        self._is_old = is_old
        self._results: queue.SimpleQueue[tuple[int, Message | Exception]] = (
            queue.SimpleQueue()
        )
        self._pending = dict.fromkeys(wanted, 0)  # refusals
        for worker, (begin, size) in wanted.items():
            # A daemon: a read from a stopped process must not keep this one alive.
            threading.Thread(
                target=self._read, args=(worker, key, begin, size), daemon=True
            ).start()

    def results(
        self, notice: Callable[[Sequence[int], float], None]
    ) -> "list[tuple[int, Message | Exception]]":
        """Returns the result of each read. Calls `notice` while it takes long."""
        found: list[tuple[int, Message | Exception]] = []
        began = noticed = time.monotonic()
        while self._pending:
            try:
                worker, result = self._results.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                found += [(each, GoneError()) for each in self._refusing()]
                now = time.monotonic()
                if self._pending and now - noticed > _NOTICE_SECONDS:
                    noticed = now
                    notice(sorted(self._pending), now - began)
                continue
            if self._pending.pop(worker, None) is not None:
                found.append((worker, result))
        return found

    def _refusing(self) -> list[int]:
        for worker in self._pending:
            # TensorFlow's sessions wait for a process that has ended, until a deadline.
            refused = self._transport.is_gone(worker)
            self._pending[worker] = self._pending[worker] + 1 if refused else 0
        gone = [each for each, n in self._pending.items() if n >= _REFUSALS]
        for worker in gone:
            del self._pending[worker]
        return gone

    def _read(self, worker: int, key: int, begin: int, size: int) -> None:
        pause = _FIRST_PAUSE
        try:
            # `results` takes out whom it has given up, which ends this thread.
            while worker in self._pending:
                message = self._transport.read(worker, key, begin, size)
                if message is not None and not self._is_old(worker, message):
                    self._results.put((worker, message))
                    return
                time.sleep(pause)
                pause = min(1.5 * pause, _LONGEST_PAUSE)
        except (GoneError, SilentError) as error:
            self._results.put((worker, error))
        except Exception as error:
            _log.exception("could not read the model of another worker")
            self._results.put((worker, error))
