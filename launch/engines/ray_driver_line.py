"""A line of shell that an actor runs for a bridge: what goes there and comes back."""

import contextlib
import os
import select
import socket
import threading
from dataclasses import dataclass
from typing import Any

_CHUNK = 256 * 1024
_POLL, _TURN = 10.0, 0.5  # seconds


@dataclass(eq=False)
class Line:
    """A line of shell that an actor runs for a bridge.

    `link` closes when the bridge is gone; `files` are the standard files of the bridge.
    """

    actor: Any
    line: str
    link: socket.socket
    files: list[int]

    def __post_init__(self) -> None:
        self._has_ended = threading.Event()

    def run(self) -> int:
        """Passes everything on until the line ends, and returns its exit status."""
        import ray

        key = ray.get(self.actor.start.remote(self.line))
        sender = threading.Thread(target=self._send, args=[key], daemon=True)
        sender.start()
        try:
            while found := ray.get(self.actor.read.remote(key, _POLL)):
                for name, data in found.items():
                    self._pass_on(self.files[name], data)
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

        source, link = self.files[0], self.link.fileno()
        with contextlib.suppress(Exception):  # `run` meets the same.
            while not self._has_ended.is_set():
                ready, _, _ = select.select([source, link], [], [], _TURN)
                data = os.read(source, _CHUNK) if source in ready else b""
                if data:
                    ray.get(self.actor.write.remote(key, data))
                elif ready:
                    ray.get(self.actor.end_input.remote(key))
                    return


def is_closed(link: socket.socket) -> bool:
    """Returns True if a bridge is gone, which sends nothing but its request."""
    return bool(select.select([link], [], [], 0)[0])
