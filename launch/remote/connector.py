"""Runs a line of shell in a pod that `launch.remote.listener` waits in.

    LAUNCHER_KEY_FILE=... python -m launch.remote.connector mnist-ps-0.mnist ps:0 LINE

Standard input, output and error are those of the line. It waits until the pod answers,
however long that takes: whoever started it has a deadline.
"""

import contextlib
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Sequence

from launch.remote import greeting

_RETRY_INTERVAL = 0.3  # seconds
_SILENCE = 30_000  # milliseconds that a host may take to acknowledge what was sent
_CHUNK = 64 * 1024


def connect(address: str, key: bytes, task: str, wish: dict[str, str]) -> socket.socket:
    """Returns a connection to a pod.

    Raises:
        OSError: If it cannot be reached, or is another's.
    """
    link = socket.create_connection((address, greeting.PORT), greeting.TIMEOUT)
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that has lost its network does not close connections.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE)
        greeting.call(link, key, task, wish)
    except BaseException:
        link.close()
        raise
    return link


def end(addresses: Sequence[tuple[str, str]]) -> None:
    """Tells pods that their job is over; those that are gone need not know."""
    key = greeting.read_key()
    for address, task in addresses:
        with contextlib.suppress(OSError):
            connect(address, key, task, {"for": greeting.OVER}).close()


def _links(address: str, task: str, line: str) -> tuple[socket.socket, socket.socket]:
    key, name = greeting.read_key(), secrets.token_hex(8)
    while True:
        # The network learns the name of a pod a while after it runs, and forgets the
        # address of the one before it later still.
        with contextlib.suppress(OSError):
            wish = {"for": greeting.PROCESS, "id": name, "line": line}
            wish["launcher"] = socket.gethostname()
            events = connect(address, key, task, {"for": greeting.EVENTS, "id": name})
            # The events first: the pod starts no process until it has both connections.
            with contextlib.ExitStack() as stack:
                stack.callback(events.close)
                process = connect(address, key, task, wish)
                stack.pop_all()
                return process, events
        time.sleep(_RETRY_INTERVAL)


def _pump(process: socket.socket, events: socket.socket) -> None:
    to = {process.fileno(): 1, events.fileno(): 2, 0: process.fileno()}
    open_ends = {process.fileno(), events.fileno()}
    waiting = {0, *open_ends}
    while open_ends & waiting:
        ready, _, _ = select.select([*waiting], [], [])
        for source in ready:
            data = os.read(source, _CHUNK)
            if not data:
                waiting.discard(source)
                if source == 0:
                    # The end of the launcher's input must get through: the agent ends
                    # its task with it.
                    process.shutdown(socket.SHUT_WR)
            while data:
                data = data[os.write(to[source], data) :]


def main() -> int:
    """Connects, and returns once the line has ended, or the connection has failed."""
    _, address, task, line = sys.argv
    process, events = _links(address, task, line)
    try:
        _pump(process, events)
    except OSError as error:
        print(f"the connection to {task} has failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
