"""Probes the address of a task, step by step.

A probe looks up the host, connects to the port, reads the first bytes, and asks the
server which task it is. Each step has a deadline.
"""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from launch.diagnose import peer
from launch.diagnose.probe_result import ProbeOutcome, ProbeResult
from launch.network import reach
from tf_config import split_address
from tf_config.address import bracketed

# The connection preface of an HTTP/2 client (RFC 9113, section 3.4), and the SETTINGS
# frame that each side must send first.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS = 4
_FRAME_HEADER = 9  # bytes
_RANKS = {outcome: rank for rank, outcome in enumerate(ProbeOutcome)}


def probe_all(addresses: Mapping[str, str], timeout: float) -> dict[str, ProbeResult]:
    """Probes addresses concurrently.

    Returns:
        The result of each probe, after at most four times `timeout`.
    """
    # The report of a thread that still hangs in a lookup.
    latest = {name: _unresolved(address) for name, address in addresses.items()}

    def run(name: str, address: str) -> None:
        for report in probe(address, timeout):
            latest[name] = report

    # Daemon threads: a lookup has no timeout, and must not keep this process alive.
    threads = [
        threading.Thread(target=run, args=item, daemon=True)
        for item in addresses.items()
    ]
    deadline = time.monotonic() + 4 * timeout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(latest)


def probe(address: str, timeout: float) -> Iterator[ProbeResult]:
    """Probes one address, and yields what is known after each step."""
    yield _unresolved(address)
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        yield ProbeResult(address, ProbeOutcome.NO_SUCH_HOST, _words(error))
        return
    # A name may have an IPv4 and an IPv6 address, and the server may listen on one
    # only.
    best: ProbeResult | None = None
    for family, _, _, _, destination in found:
        ip = str(destination[0]).partition("%")[0]
        report = ProbeResult(
            address, ProbeOutcome.UNREACHABLE, "", ip, reach.has_address(family, ip)
        )
        yield best or report
        # All addresses of one host share the time.
        report = _connect(report, family, port, timeout / len(found))
        if best is None or _RANKS[report.outcome] > _RANKS[best.outcome]:
            best = report
    assert best is not None, "a lookup that succeeds finds something"
    yield best
    if best.outcome is ProbeOutcome.TENSORFLOW:
        yield _ask(best, port, timeout)


def _unresolved(address: str) -> ProbeResult:
    return ProbeResult(address, ProbeOutcome.LOOKUP_SLOW)


def _connect(
    report: ProbeResult, family: int, port: int, timeout: float
) -> ProbeResult:
    """Connects, and determines which protocol the server speaks.

    The outcome is TENSORFLOW for any HTTP/2 server; `_ask` decides.
    """
    # Two steps: to connect, and to read.
    deadline = time.monotonic() + 2 * timeout
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect((report.ip, port))
            heard, problem = _greet(connection, deadline)
    except ConnectionRefusedError as error:
        return replace(report, outcome=ProbeOutcome.REFUSED, detail=_words(error))
    except OSError as error:
        return replace(report, detail=_words(error))
    if len(heard) >= _FRAME_HEADER and heard[3] == _SETTINGS:
        return replace(report, outcome=ProbeOutcome.TENSORFLOW)
    if heard or problem:
        detail = _language(heard) if heard else problem
        return replace(report, outcome=ProbeOutcome.STRANGER, detail=detail)
    return replace(report, outcome=ProbeOutcome.SILENT)


def _greet(connection: socket.socket, deadline: float) -> tuple[bytes, str]:
    """Greets in HTTP/2; returns the first bytes of the answer, or why there is none."""
    heard = b""
    try:
        connection.sendall(_PREFACE + _EMPTY_SETTINGS)
        while len(heard) < _FRAME_HEADER:
            left = deadline - time.monotonic()
            # Zero would make the socket non-blocking, and a negative timeout is an
            # error.
            connection.settimeout(max(left, 0.001))
            if not (more := connection.recv(256)):
                return heard, "it closed the connection"
            heard += more
    except TimeoutError:
        return heard, ""
    except OSError as error:
        return heard, f"it broke the connection: {_words(error)}"
    return heard, ""


def _language(heard: bytes) -> str:
    """Describes what a server that does not speak gRPC sent.

    >>> _language(b"SSH-2.0-OpenSSH_9.2p1"), _language(b"220 mail")
    ("SSH: b'SSH-2.0-OpenSSH_9.2p1'", "b'220 mail'")
    """
    for start, name in ((b"HTTP/", "HTTP"), (b"SSH-", "SSH"), (b"\x15\x03", "TLS")):
        if heard.startswith(start):
            return f"{name}: {heard[:40]!r}"
    return repr(heard[:40])


def _ask(report: ProbeResult, port: int, timeout: float) -> ProbeResult:
    try:
        return replace(report, peer=peer.ask(f"{bracketed(report.ip)}:{port}", timeout))
    except peer.NotTensorFlowError as error:
        return replace(report, outcome=ProbeOutcome.NOT_TENSORFLOW, detail=str(error))
    except peer.NoAnswerError as error:
        return replace(report, outcome=ProbeOutcome.SILENT, detail=str(error))


def _words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
