"""How messages travel: the interface, which a test can implement in memory."""

from typing import Protocol

from tfdist.local_update.message import Message


class GoneError(Exception):
    """A worker's process has ended, or was started again."""


class SilentError(Exception):
    """A worker does not answer, although its host does."""


class Transport(Protocol):
    """Mailboxes: each worker writes its own, and reads those of others.

    A worker writes message after message. Its mailbox has room for two, by the parity of
    their keys. Reading changes nothing, so anyone may read, and read again.
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

        Raises:
            GoneError: If its process has ended.
            SilentError: If it does not answer within the timeout.
        """

    def is_gone(self, worker: int) -> bool:
        """Returns whether nothing listens on a worker's address."""

    def publish_aside(self, message: Message) -> None:
        """Puts a message beside the mailbox, in place of the last one there.

        A worker that was started again asks there to take part, and is answered there.
        """

    def read_aside(self, worker: int, with_payload: bool = True) -> Message | None:
        """Returns what another worker has put beside its mailbox, if it has.

        Raises:
            GoneError: If its process has ended.
            SilentError: If it does not answer within the timeout.
        """

    def newest(self, worker: int) -> Message | None:
        """Returns the newest message of another worker without its payload, if any.

        Raises:
            GoneError: If its process has ended.
            SilentError: If it does not answer within the timeout.
        """

    def forget(self, worker: int) -> None:
        """Makes the next read connect again: to a process that was started again."""
