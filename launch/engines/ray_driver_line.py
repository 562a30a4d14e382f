"""A line of shell that an actor runs for a bridge: what goes there and comes back."""

import contextlib
import os
import select
import socket
import threading
from typing import Any

_CHUNK = 256 * 1024
_POLL, _TURN = 10.0, 0.5  # seconds


class Line:
    """A line of shell that an actor runs for a bridge.

    Args:
        actor: Runs it.
        line: The line.
        link: Closes when the bridge is gone.
        files: The standard files of the bridge.
    """

    def __init__(
        self, actor: Any, line: str, link: socket.socket, files: list[int]
    ) -> None:
        self._actor = actor
        self._link = link
        self._files = files
        self._line = line
        self._has_ended = threading.Event()

    def run(self) -> int:
        """Passes everything on until the line ends, and returns its exit status."""
        import ray

        key = ray.get(self._actor.start.remote(self._line))
        sender = threading.Thread(target=self._send, args=[key], daemon=True)
        sender.start()
        try:
            while found := ray.get(self._actor.read.remote(key, _POLL)):
                for name, data in found.items():
                    self._pass_on(self._files[name], data)
        finally:
            self._has_ended.set()
            sender.join()
        return 0

    def _pass_on(self, file: int, data: bytes) -> None:
        # If the reader is gone, so is the bridge, and the line will end.
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(file, data) :]

    def _send(self, key: int) -> None:
        import ray

        source, link = self._files[0], self._link.fileno()
        with contextlib.suppress(Exception):  # `run` meets the same.
            while not self._has_ended.is_set():
                ready, _, _ = select.select([source, link], [], [], _TURN)
                data = os.read(source, _CHUNK) if source in ready else b""
                if data:
                    ray.get(self._actor.write.remote(key, data))
                elif ready:
                    ray.get(self._actor.end_input.remote(key))
                    return


def is_closed(link: socket.socket) -> bool:
    """Returns True if a bridge is gone, which sends nothing but its request."""
    return bool(select.select([link], [], [], 0)[0])
