"""Servers that a task may be taken for, each in a thread of this process."""

import contextlib
import socket
import struct
import threading
import time
from concurrent import futures

import grpc

from launch.diagnose.peer import pb


@contextlib.contextmanager
def talking(first_words, *, close=False):
    """A TCP server that says the same to everybody; yields its address."""
    connections = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.sendall(first_words)
                if close:
                    connection.shutdown(socket.SHUT_WR)
                connections.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


@contextlib.contextmanager
def grpc_server(methods):
    """A gRPC server; `methods` are functions of the request, by their names."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            name = details.method.removeprefix("/tensorflow.")
            if name not in methods:
                return None
            return grpc.unary_unary_rpc_method_handler(methods[name])

    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[Handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def tensorflow_server(task, *, version="9.8.7", ahead=0.0, tf_config=None):
    """A server that answers as TensorFlow's does; `tf_config` is called for its own."""
    job, index = task.split(":")

    def get_status(request, context):
        device = f"/job:{job}/replica:0/task:{index}/device:CPU:0"
        return pb.GetStatusResponse(
            device_attributes=[pb.Device(name=device)]
        ).SerializeToString()

    def register_graph(request, context):
        context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            "GraphDef min consumer version 2147483647 above current version 1 for "
            f"TensorFlow {version}.  Please upgrade TensorFlow.",
        )

    def run_step(request, context):
        (fetched,) = pb.RunStepRequest.FromString(request).fetch
        if fetched == "clock:0":
            content = struct.pack("<d", time.time() + ahead)
        elif tf_config is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no such variable")
        else:
            text = tf_config().encode()
            assert len(text) < 2**14
            # The length as a varint of two bytes, as TensorFlow writes it.
            content = bytes([len(text) & 0x7F | 0x80, len(text) >> 7]) + text
        tensor = pb.NamedTensor(name=fetched, tensor=pb.Tensor(tensor_content=content))
        return pb.RunStepResponse(tensor=[tensor]).SerializeToString()

    return grpc_server(
        {
            "WorkerService/GetStatus": get_status,
            "WorkerService/RegisterGraph": register_graph,
            "MasterService/CreateSession": lambda *_: b"\n\x06handle",
            "MasterService/RunStep": run_step,
            "MasterService/CloseSession": lambda *_: b"",
        }
    )
