"""The messages exchanged with a TensorFlow server, as protocol buffers.

TensorFlow's generated classes cannot be imported without importing TensorFlow, which
takes seconds. So the few fields needed here are declared again, with the names and the
numbers they have in TensorFlow's `.proto` files (`core/protobuf/{master,worker}.proto`
and `core/framework/*.proto`). protobuf skips fields that are not declared.
"""

from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "launch.diagnose"
_BYTES, _INT32, _STRING = _Field.TYPE_BYTES, _Field.TYPE_INT32, _Field.TYPE_STRING

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
    # How a string tensor holds one string: its length, then its bytes.
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
