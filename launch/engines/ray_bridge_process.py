"""Runs a line of shell next to a task on Ray, as ssh would on a host.

    python ray_bridge_process.py NAME TASK LINE

The driver of the job (`launch.engines.ray_driver_process`) listens under the name. It gets the
standard files of this process and serves them from the other end. When this process
ends, so does the line. It imports the standard library alone, and takes little memory:
there is one per task.
"""

import json
import os
import socket
import struct
import sys

LOST = 255
"""The exit status if the line did not end by itself, as that of ssh."""

MOST = 64 * 1024
"""Bytes of the longest request."""


def peer_is_same_user(link: socket.socket) -> bool:
    """Returns True if the other end runs as this user: anyone may use such a name."""
    size = struct.calcsize("3i")
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", found)
    return bool(user == os.geteuid())


def main() -> int:
    """Asks the driver, and waits for the end of the line."""
    _, name, task, line = sys.argv
    request = json.dumps({"task": task, "line": line}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        try:
            link.connect(f"\0{name}")
            if not peer_is_same_user(link):
                raise ConnectionRefusedError("another user has its name")
            socket.send_fds(link, [request], [0, 1, 2])
            answer = link.recv(MOST)
        except OSError as error:
            print(
                f"launch: the job's connection to Ray has gone: {error}",
                file=sys.stderr,
            )
            return LOST
    return int(answer or LOST)


if __name__ == "__main__":
    sys.exit(main())
