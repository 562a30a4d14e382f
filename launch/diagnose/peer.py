"""What a TensorFlow server tells about itself, asked over gRPC without TensorFlow.

Three of its services are used (`tensorflow/core/protobuf/worker_service.proto` and
`master_service.proto`), and nothing of it changes:

- `GetStatus` lists its devices, whose names say which task it believes to be.
- A graph that wants a TensorFlow of the far future is refused, with the version.
- A session that knows of this task alone reads the task's clock, and the variable in
  which `tfdist` keeps the cluster and the task that it was started with.
"""

import re
import struct
import time

import grpc

from launch.diagnose.protobuf import MalformedError, field, first_bytes, read_varint
from launch.diagnose.report import Peer
from tf_config.contract import STATUS_CONTAINER, STATUS_VARIABLE

_FAR_FUTURE = 2**31 - 1
_GRAPH_VERSION = 1000  # Of 2021: known to every TensorFlow that this package supports.
_DT_STRING = 7
_CONTENT = 4  # A tensor's values as they are in memory; each text after its size.
_VERSION = re.compile(r"for TensorFlow (\S+?)\.(?:\s|$)")
_TASK = re.compile(rb"/job:([^/]+)/(?:replica:\d+/)?task:(\d+)/")
# Of this machine's own environment. A proxy is not what stands between two tasks.
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0))


class NotTensorFlowError(Exception):
    """A gRPC server that does not know TensorFlow's services."""


class NoAnswerError(Exception):
    """A server that did not answer in time, or broke off."""


def ask(address: str, timeout: float) -> Peer:
    """Asks the server at an address, `host:port`.

    Args:
        address: Of a server that speaks HTTP/2.
        timeout: For all calls together, in seconds.

    Raises:
        NotTensorFlowError: If it is another kind of server.
        NoAnswerError: If it does not answer.
    """
    deadline = time.monotonic() + timeout
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        calls = _Calls(channel, deadline)
        task = _task(calls)
        version = _version(calls)
        try:
            clock, uncertainty, config = _Session(calls, task).read()
        except (grpc.RpcError, MalformedError, struct.error) as error:
            return Peer(task, version, silence=_reason(error))
    return Peer(task, version, clock, uncertainty, config)


class _Calls:
    """Calls that share a deadline."""

    def __init__(self, channel: grpc.Channel, deadline: float) -> None:
        self._channel = channel
        self._deadline = deadline

    def __call__(self, method: str, request: bytes) -> bytes:
        left = max(0.0, self._deadline - time.monotonic())
        call = self._channel.unary_unary(f"/tensorflow.{method}")
        return bytes(call(request, timeout=left))


def _task(calls: _Calls) -> str:
    try:
        status = calls("WorkerService/GetStatus", b"")
        match = _TASK.match(first_bytes(status, 1, 1))
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            raise NotTensorFlowError(_reason(error)) from None
        raise NoAnswerError(_reason(error)) from None
    except MalformedError as error:
        raise NotTensorFlowError(str(error)) from None
    if match is None:
        raise NotTensorFlowError(f"its first device is {first_bytes(status, 1, 1)!r}")
    return f"{match[1].decode(errors='replace')}:{int(match[2])}"


def _version(calls: _Calls) -> str | None:
    versions = field(2, _FAR_FUTURE)  # min_consumer
    graph = field(4, versions)
    try:
        calls("WorkerService/RegisterGraph", field(2, graph))
    except grpc.RpcError as error:
        match = _VERSION.search(error.details() or "")
        return match[1] if match else None
    return None


class _Session:
    """A session on one task, of a graph that reads its clock and its status."""

    def __init__(self, calls: _Calls, task: str) -> None:
        job, _, index = task.rpartition(":")
        self._calls = calls
        self._device = f"/job:{job}/task:{index}"

    def read(self) -> tuple[float, float, str | None]:
        """The clock, the uncertainty of it, and the TF_CONFIG, if it is told."""
        graph = self._graph()
        # Without the filter, the server would wait for every task of its cluster.
        config = field(4, self._device)
        request = field(1, graph) + field(2, config)
        created = self._calls("MasterService/CreateSession", request)
        handle = field(1, first_bytes(created, 1))
        try:
            self._run(handle, "clock")  # The first takes longer: it is compiled.
            before = time.time()
            tensor = self._run(handle, "clock")
            after = time.time()
            (clock,) = struct.unpack("<d", first_bytes(tensor, _CONTENT))
            text = self._text(handle)
        finally:
            self._calls("MasterService/CloseSession", handle)
        return clock - (before + after) / 2, (after - before) / 2, text

    def _text(self, handle: bytes) -> str | None:
        try:
            tensor = self._run(handle, "text")
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                return None  # There is no such variable.
            raise
        content = first_bytes(tensor, _CONTENT)
        size, start = read_varint(content)
        return content[start : start + size].decode(errors="replace")

    def _run(self, handle: bytes, node: str) -> bytes:
        fetched = self._calls("MasterService/RunStep", handle + field(3, f"{node}:0"))
        return first_bytes(fetched, 1, 2)

    def _graph(self) -> bytes:
        dtype = _attribute("dtype", field(6, _DT_STRING))
        variable = (
            dtype
            + _attribute("shape", field(7, b""))
            + _attribute("container", field(2, STATUS_CONTAINER))
            + _attribute("shared_name", field(2, STATUS_VARIABLE))
        )
        nodes = (
            self._node("clock", "Timestamp"),
            self._node("variable", "VarHandleOp", variable),
            self._node("text", "ReadVariableOp", field(3, "variable") + dtype),
        )
        versions = field(1, _GRAPH_VERSION)  # producer
        return b"".join(field(1, node) for node in nodes) + field(4, versions)

    def _node(self, name: str, operation: str, rest: bytes = b"") -> bytes:
        return (
            field(1, name)
            + field(2, operation)
            + field(4, f"{self._device}/device:CPU:0")
            + rest
        )


def _attribute(name: str, value: bytes) -> bytes:
    return field(5, field(1, name) + field(2, value))


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        details = (error.details() or "").splitlines()
        return f"{error.code().name}: {details[0] if details else 'no details'}"
    return str(error)
