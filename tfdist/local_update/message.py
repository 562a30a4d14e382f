"""Messages in workers' mailboxes, a header and bytes, and how others read them.

The header is a row of int64: the key, the offset of the payload in the vector that it is
part of, the call that it belongs to, and the version of each worker.
"""

import dataclasses
import enum
import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

NOTHING = -1
"""The key of a mailbox that holds no message yet."""

LEFT = 1 << 62
"""The first of the keys of workers that have left."""


class Call(enum.IntEnum):
    """The computation of the workers that a message belongs to."""

    GATHER = 0
    MEAN = 1
    TO_LEAD = 2
    FROM_LEAD = 3
    AVERAGE = 4
    BARRIER = 5


@dataclasses.dataclass(frozen=True)
class Message:
    """A message of one worker.

    Attributes:
        key: Its number. All workers number their messages alike.
        begin: The payload's offset in the vector that it is part of, in elements.
        versions: The sender's knowledge of each worker: see `members.Members`.
        payload: uint8.
        fit: The number of the sender's `fit`.
        call: The computation that it belongs to.
    """

    key: int
    begin: int
    versions: Sequence[int]
    payload: np.ndarray
    fit: int = 0
    call: Call = Call.GATHER

    def pack(self) -> np.ndarray:
        """Returns the message as uint8."""
        whatfor = len(Call) * self.fit + self.call
        header = np.array([self.key, self.begin, whatfor, *self.versions], np.int64)
        return np.concatenate([header.view(np.uint8), self.payload])


def header_bytes(workers: int) -> int:
    """Returns the size of a header, in bytes.

    >>> header_bytes(4)
    56
    """
    return 8 * (3 + workers)


def message_of(header: np.ndarray, payload: np.ndarray) -> Message:
    """Returns the message that these bytes are."""
    key, begin, whatfor, *versions = header.view(np.int64).tolist()
    fit, call = divmod(whatfor, len(Call))
    return Message(key, begin, versions, payload, fit, Call(call))


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Returns the bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def pack(info: Any, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns plain data, for JSON, and the bytes of arrays as uint8."""
    parts = [bytes_of(each) for each in arrays]
    text = json.dumps([info, [len(each) for each in parts]]).encode()
    head = np.array([len(text)], np.int64).view(np.uint8)
    return np.concatenate([head, np.frombuffer(text, np.uint8), *parts])


def unpack(payload: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    """Returns the plain data, and the bytes of each array."""
    end = 8 + int(payload[:8].view(np.int64)[0])
    info, sizes = json.loads(payload[8:end].tobytes())
    ends = end + np.cumsum([0, *sizes])
    pairs = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    return info, [payload[begin:stop] for begin, stop in pairs]


class GoneError(Exception):
    """A worker's process has ended, or was started again."""


class SilentError(Exception):
    """A worker does not answer, although its host does."""


class Transport(Protocol):
    """Mailboxes: each worker writes its own, and reads those of others.

    A worker writes message after message. Its mailbox has room for two, by the parity of
    their keys. Reading changes nothing, so anyone may read, and read again. A read raises
    `GoneError` if the other process has ended, and `SilentError` if it does not answer.
    """

    def publish(self, message: Message) -> None:
        """Puts a message into this worker's mailbox, in place of the last but one."""

    def read(self, worker: int, key: int, begin: int, size: int) -> Message | None:
        """Returns a message of another worker, or None if it is not there yet.

        Args:
            worker: The index of the other worker.
            key: The key of the message. If that was replaced already, or its sender has
                left, a newer one is returned.
            begin: The first byte of the payload to read.
            size: How many bytes to read; -1 for the rest.
        """

    def is_gone(self, worker: int) -> bool:
        """Returns True if nothing listens on a worker's address."""

    def publish_aside(self, message: Message) -> None:
        """Puts a message next to the mailbox, in place of the last one there.

        A worker that was started again asks there to take part, and is answered there.
        """

    def read_aside(self, worker: int, with_payload: bool = True) -> Message | None:
        """Returns another worker's message next to its mailbox, if it has one."""

    def newest(self, worker: int) -> Message | None:
        """Returns the newest message of another worker without its payload, if any."""

    def forget(self, worker: int) -> None:
        """Makes the next read connect again: to a process that was started again."""
