"""Send 50,000 bytes to port 2 of a host: HOST."""

import socket
import sys
import time

ATTEMPTS = 100


def connect(host: str) -> socket.socket:
    for _ in range(ATTEMPTS):
        try:
            return socket.create_connection((host, 2), 5)
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{host} does not listen on port 2")


with connect(sys.argv[1]) as connection:
    connection.sendall(b"x" * 50_000)
