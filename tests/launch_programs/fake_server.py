"""A server that gives the sign of life of TensorFlow's."""

import threading
from concurrent import futures

import grpc

from ..support.deadline import DEADLINE


class FakeServer:
    """Answers as a TensorFlow server does, until it is told to be silent."""

    def __init__(self, port=0):
        self.silent = threading.Event()
        self.over = threading.Event()
        handler = grpc.method_handlers_generic_handler(
            "tensorflow.WorkerService",
            {"GetStatus": grpc.unary_unary_rpc_method_handler(self._answer)},
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((handler,))
        self.address = (
            f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        )
        self._server.start()

    def _answer(self, request, context):
        if self.silent.is_set():
            self.over.wait(DEADLINE)
        return b""

    def close(self):
        self.over.set()
        self._server.stop(0).wait(DEADLINE)
