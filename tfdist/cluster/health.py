"""Asking a task's server for a sign of life, without TensorFlow and with a deadline.

A port that accepts connections proves little: the kernel accepts them for a process that
is stopped, and any program may listen there. So every server is asked for its status, a
call of TensorFlow's own (`tensorflow/core/protobuf/worker_service.proto`), which it
answers whatever it computes meanwhile.
"""

from collections.abc import Mapping
from typing import Any

import grpc

import tf_config

NO_ANSWER = "does not answer: it is stopped, cut off, or no TensorFlow server"
"""What is wrong with a task whose process may well be there."""

_METHOD = "/tensorflow.WorkerService/GetStatus"
# A proxy of the environment is not what stands between two tasks.
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class Server:
    """A server that is asked again and again.

    Args:
        address: `host:port`.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._status = self._channel.unary_unary(_METHOD)

    def ask(self, timeout: float) -> Any:
        """Asks, and waits for nothing; `problem_of` waits for the answer.

        Args:
            timeout: How long the server may take, in seconds.
        """
        return self._status.future(b"", timeout=timeout)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


def problem_of(answer: Any) -> str | None:
    """What is wrong with a server, in words; None if it is alive.

    Args:
        answer: What `ask` returned.
    """
    error = answer.exception()
    if error is None:
        return None
    code = answer.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NO_ANSWER
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "is another kind of server"
    if "SETTINGS frame" in (answer.details() or ""):
        return "answers, and is no TensorFlow server"
    return f"cannot be reached: {_short(answer.details())}"


def problems(
    addresses: Mapping[tf_config.Task, str], timeout: float
) -> dict[tf_config.Task, str]:
    """Asks all servers at once, and returns what is wrong with those that do not answer.

    Args:
        addresses: The address of each task.
        timeout: Of all together, in seconds.
    """
    servers = {task: Server(address) for task, address in addresses.items()}
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
