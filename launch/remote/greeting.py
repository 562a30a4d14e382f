"""Two processes of a job recognize each other: both know its key, and neither sends it.

Whoever accepts the connection also proves which task it is. An address may belong to
another pod by the time that somebody connects to it.
"""

import hashlib
import hmac
import json
import os
import secrets
import socket
from typing import Any

KEY_FILE = "LAUNCHER_KEY_FILE"
"""The environment variable that names the file with the job's key."""

PORT = 2221
"""The port on which a pod waits for the launcher of its job."""

OVER, PROCESS, EVENTS = "over", "process", "events"
"""The purposes of a connection: the end of the job, a process, its standard error."""

TIMEOUT = 10.0  # seconds
_LONGEST = 1 << 20  # bytes of a line
# Part of each proof: nobody can send one back as an answer of its own.
_CALLER, _SERVER = "caller", "server"


class StrangerError(ConnectionError):
    """The other side does not know the key, or is another task."""


def read_key() -> bytes:
    """Returns the key of the job that this process belongs to."""
    with open(os.environ[KEY_FILE], "rb") as file:
        return file.read().strip()


def call(link: socket.socket, key: bytes, task: str, wish: dict[str, Any]) -> None:
    """Greets a pod, and tells it the purpose of the connection.

    Raises:
        StrangerError: If somebody else has answered.
        OSError: If the connection fails.
    """
    link.settimeout(TIMEOUT)
    theirs, ours = _read(link).get("nonce"), secrets.token_hex(32)
    _write(link, {"nonce": ours, "proof": _proof(key, _CALLER, theirs, ours, "")})
    if not _is(_read(link).get("proof"), _proof(key, _SERVER, theirs, ours, task)):
        raise StrangerError(f"whoever answers is not {task} of this job")
    _write(link, wish)
    link.settimeout(None)


def answer(link: socket.socket, key: bytes, task: str) -> dict[str, Any]:
    """Greets a caller, and returns its request.

    Raises:
        StrangerError: If the caller is not the job's launcher.
        OSError: If the connection fails.
    """
    link.settimeout(TIMEOUT)
    ours = secrets.token_hex(32)
    _write(link, {"nonce": ours})
    said = _read(link)
    theirs = said.get("nonce")
    if not _is(said.get("proof"), _proof(key, _CALLER, ours, theirs, "")):
        raise StrangerError("a caller does not know the key of this job")
    _write(link, {"proof": _proof(key, _SERVER, ours, theirs, task)})
    wish = _read(link)
    link.settimeout(None)
    return wish


def _proof(key: bytes, side: str, first: Any, second: Any, task: str) -> str:
    # As JSON, so that no two lists of words look the same.
    words = json.dumps([side, str(first), str(second), task]).encode()
    return hmac.new(key, words, hashlib.sha256).hexdigest()


def _is(received: Any, expected: str) -> bool:
    # As bytes: of two `str`, it takes only ASCII.
    return hmac.compare_digest(str(received).encode(), expected.encode())


def _write(link: socket.socket, value: dict[str, Any]) -> None:
    link.sendall(json.dumps(value).encode() + b"\n")


def _read(link: socket.socket) -> dict[str, Any]:
    """Reads a line, and not a byte more: what follows is not for this module."""
    data = b""
    while not data.endswith(b"\n"):
        if not (byte := link.recv(1)) or len(data) > _LONGEST:
            raise StrangerError("the other side does not greet as a launcher does")
        data += byte
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise StrangerError("the other side does not greet as a launcher does")
    return value
