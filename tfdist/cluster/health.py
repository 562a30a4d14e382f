"""Checks whether a task's server is alive, without TensorFlow and with a deadline.

A port that accepts connections proves little: the kernel accepts them for a stopped
process, and any program may listen there. So this module calls TensorFlow's GetStatus
(`tensorflow/core/protobuf/worker_service.proto`), which a server answers even while it
computes.
"""

from collections.abc import Mapping
from typing import Any

import grpc

import tf_config

NO_ANSWER = "does not answer: it is stopped, cut off, or no TensorFlow server"
"""The problem of a task whose process may still exist."""

_METHOD = "/tensorflow.WorkerService/GetStatus"
# gRPC would otherwise use the proxy that the environment names.
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # A server that comes back is seen in a second; gRPC pauses up to two minutes.
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class StatusConnection:
    """A connection to a server at `host:port`, for repeated status calls."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._status = self._channel.unary_unary(_METHOD)

    def ask(self, timeout: float) -> Any:
        """Sends a status call with a deadline in seconds, without waiting."""
        # An empty request has no bytes, so this needs none of TensorFlow's messages.
        return self._status.future(b"", timeout=timeout)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


def problem_of(answer: Any) -> str | None:
    """Returns the problem of a server that was asked, or None if it is alive."""
    error = answer.exception()
    if error is None:
        return None
    code = answer.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NO_ANSWER
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "is another kind of server"
    # gRPC says this of a port whose program does not speak HTTP/2.
    if "SETTINGS frame" in (answer.details() or ""):
        return "answers, and is no TensorFlow server"
    return f"cannot be reached: {_short(answer.details())}"


def problems(
    addresses: Mapping[tf_config.Task, str], timeout: float
) -> dict[tf_config.Task, str]:
    """Asks all servers at once, and returns the problems of those that fail.

    `timeout` is the deadline of each call, in seconds; they run concurrently.
    """
    servers = {task: StatusConnection(address) for task, address in addresses.items()}
    answers = {task: server.ask(timeout) for task, server in servers.items()}
    found = {task: problem_of(answer) for task, answer in answers.items()}
    for server in servers.values():
        server.close()
    return {task: problem for task, problem in found.items() if problem}


def _short(details: str | None) -> str:
    # The last cause is the innermost one: "... last error: UNKNOWN: ...: Connection
    # refused".
    words = (details or "").rpartition("last error: ")[2]
    return words[-80:].rpartition(": ")[2] or "unknown"
