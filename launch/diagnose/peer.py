"""Asks a TensorFlow server about itself over gRPC, without importing TensorFlow.

Three calls are used (`tensorflow/core/protobuf/worker_service.proto` and
`master_service.proto`); none of them changes the server's state:

- `GetStatus` lists its devices, whose names say which task it believes it is.
- `RegisterGraph` rejects a graph from the far future with an error that names its
  TensorFlow version. No call reports the version directly.
- A session restricted to this task reads the task's clock, and the variable in which
  `tfdist` publishes the TF_CONFIG that the task was started with.
"""

import re
import struct
import time
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from launch.diagnose.probe_result import Peer
from tf_config.contract import STATUS_CONTAINER, STATUS_VARIABLE

_FAR_FUTURE = 2**31 - 1
_GRAPH_VERSION = 1000  # From 2021: every supported TensorFlow knows it.
_DT_STRING = 7
_VERSION = re.compile(r"for TensorFlow (\S+?)\.(?:\s|$)")
_TASK = re.compile(r"/job:([^/]+)/(?:replica:\d+/)?task:(\d+)/")
# Options of this machine's environment. A proxy does not stand between two tasks.
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0))


_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "launch.diagnose"
_BYTES, _INT32, _STRING = _Field.TYPE_BYTES, _Field.TYPE_INT32, _Field.TYPE_STRING

# TensorFlow's generated classes cannot be imported without importing TensorFlow, which takes
# seconds. So the few fields needed here are declared again, with the names and the numbers
# they have in its `.proto` files (`core/protobuf/{master,worker}.proto` and
# `core/framework/*.proto`). protobuf skips fields that are not declared.
# Each field's number and type; a list is a repeated field, a name another message.
_MESSAGES: dict[str, dict[str, tuple[int, Any]]] = {
    "VersionDef": {"producer": (1, _INT32), "min_consumer": (2, _INT32)},
    "TensorShape": {},
    "AttrValue": {"s": (2, _STRING), "type": (6, _INT32), "shape": (7, "TensorShape")},
    # `NodeDef.attr` is a map, which is sent as a repeated pair.
    "Attr": {"key": (1, _STRING), "value": (2, "AttrValue")},
    "NodeDef": {
        "name": (1, _STRING),
        "op": (2, _STRING),
        "input": (3, [_STRING]),
        "device": (4, _STRING),
        "attr": (5, ["Attr"]),
    },
    "GraphDef": {"node": (1, ["NodeDef"]), "versions": (4, "VersionDef")},
    "ConfigProto": {"device_filters": (4, [_STRING])},
    "Device": {"name": (1, _STRING)},
    "GetStatusResponse": {"device_attributes": (1, ["Device"])},
    "RegisterGraphRequest": {"graph_def": (2, "GraphDef")},
    "CreateSessionRequest": {
        "graph_def": (1, "GraphDef"),
        "config": (2, "ConfigProto"),
    },
    "CreateSessionResponse": {"session_handle": (1, _STRING)},
    "RunStepRequest": {"session_handle": (1, _STRING), "fetch": (3, [_STRING])},
    "Tensor": {"tensor_content": (4, _BYTES)},
    "NamedTensor": {"name": (1, _STRING), "tensor": (2, "Tensor")},
    "RunStepResponse": {"tensor": (1, ["NamedTensor"])},
    "CloseSessionRequest": {"session_handle": (1, _STRING)},
    # The encoding of one string in a string tensor: its length, then its bytes.
    "StringContent": {"value": (1, _BYTES)},
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="launch/diagnose.proto", package=_PACKAGE, syntax="proto3"
    )
    for message, fields in _MESSAGES.items():
        declared = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            field = declared.field.add(name=name, number=number)
            field.label = _Field.LABEL_OPTIONAL
            if isinstance(kind, list):
                field.label, [kind] = _Field.LABEL_REPEATED, kind
            if isinstance(kind, str):
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = kind
    # Not the default pool: a program that imports TensorFlow registers its messages there.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
        )
        for name in _MESSAGES
    }


pb: Any = SimpleNamespace(**_classes())
"""The message classes, by name: `pb.GraphDef(node=[pb.NodeDef(name="x")])`."""

MALFORMED = (DecodeError, IndexError, struct.error)
"""The errors of reading an answer that is not TensorFlow's."""


class NotTensorFlowError(Exception):
    """A gRPC server that does not know TensorFlow's services."""


class NoAnswerError(Exception):
    """A server that did not answer in time, or broke off."""


def ask(address: str, timeout: float) -> Peer:
    """Asks the server at `host:port`; all calls together take at most `timeout` seconds.

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
        except (grpc.RpcError, *MALFORMED) as error:
            return Peer(task, version, silence=_reason(error))
    return Peer(task, version, clock, uncertainty, config)


class _Calls:
    """Calls that share a deadline."""

    def __init__(self, channel: grpc.Channel, deadline: float) -> None:
        self._channel = channel
        self._deadline = deadline

    def __call__(self, method: str, request: Any = None) -> bytes:
        left = max(0.0, self._deadline - time.monotonic())
        call = self._channel.unary_unary(f"/tensorflow.{method}")
        message = b"" if request is None else request.SerializeToString()
        return bytes(call(message, timeout=left))


def _task(calls: _Calls) -> str:
    try:
        answer = calls("WorkerService/GetStatus")
        devices = pb.GetStatusResponse.FromString(answer).device_attributes
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            raise NotTensorFlowError(_reason(error)) from None
        raise NoAnswerError(_reason(error)) from None
    except DecodeError as error:
        raise NotTensorFlowError(str(error)) from None
    device = devices[0].name if devices else ""
    match = _TASK.match(device)
    if match is None:
        raise NotTensorFlowError(f"its first device is {device!r}")
    return f"{match[1]}:{int(match[2])}"


def _version(calls: _Calls) -> str | None:
    graph = pb.GraphDef(versions=pb.VersionDef(min_consumer=_FAR_FUTURE))
    try:
        calls("WorkerService/RegisterGraph", pb.RegisterGraphRequest(graph_def=graph))
    except grpc.RpcError as error:
        match = _VERSION.search(error.details() or "")
        return match[1] if match else None
    return None


class _Session:
    """A session on one task, with a graph that reads its clock and its status."""

    def __init__(self, calls: _Calls, task: str) -> None:
        job, _, index = task.rpartition(":")
        self._calls = calls
        self._task = f"/job:{job}/task:{index}"

    def read(self) -> tuple[float, float, str | None]:
        """Returns the clock, its uncertainty, and the TF_CONFIG if it is published."""
        # Without the filter, the server would wait for every task of its cluster.
        config = pb.ConfigProto(device_filters=[self._task])
        request = pb.CreateSessionRequest(graph_def=self._graph(), config=config)
        created = self._calls("MasterService/CreateSession", request)
        handle = pb.CreateSessionResponse.FromString(created).session_handle
        try:
            # The first run takes longer, since the graph is optimized: do not time it.
            self._run(handle, "clock")
            before = time.time()
            content = self._run(handle, "clock")
            after = time.time()
            (clock,) = struct.unpack("<d", content)
            text = self._text(handle)
        finally:
            request = pb.CloseSessionRequest(session_handle=handle)
            self._calls("MasterService/CloseSession", request)
        # The task read its clock some time during the call: half the call is the most
        # that the estimate can be wrong by.
        return clock - (before + after) / 2, (after - before) / 2, text

    def _text(self, handle: str) -> str | None:
        try:
            content = self._run(handle, "text")
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                return None  # The variable does not exist.
            raise
        # The content of a string tensor, a length and bytes, is what follows the tag of
        # field 1 of a message. So protobuf can read it.
        value = pb.StringContent.FromString(b"\n" + content).value
        return bytes(value).decode(errors="replace")

    def _run(self, handle: str, node: str) -> bytes:
        request = pb.RunStepRequest(session_handle=handle, fetch=[f"{node}:0"])
        answer = self._calls("MasterService/RunStep", request)
        return bytes(
            pb.RunStepResponse.FromString(answer).tensor[0].tensor.tensor_content
        )

    def _graph(self) -> Any:
        dtype = _attribute("dtype", type=_DT_STRING)
        variable = (
            dtype,
            _attribute("shape", shape=pb.TensorShape()),
            _attribute("container", s=STATUS_CONTAINER),
            _attribute("shared_name", s=STATUS_VARIABLE),
        )
        nodes = (
            pb.NodeDef(name="clock", op="Timestamp"),
            pb.NodeDef(name="variable", op="VarHandleOp", attr=variable),
            pb.NodeDef(
                name="text", op="ReadVariableOp", input=["variable"], attr=[dtype]
            ),
        )
        for node in nodes:
            node.device = f"{self._task}/device:CPU:0"
        return pb.GraphDef(node=nodes, versions=pb.VersionDef(producer=_GRAPH_VERSION))


def _attribute(name: str, **value: Any) -> Any:
    return pb.Attr(key=name, value=pb.AttrValue(**value))


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        details = (error.details() or "").splitlines()
        return f"{error.code().name}: {details[0] if details else 'no details'}"
    return str(error)
