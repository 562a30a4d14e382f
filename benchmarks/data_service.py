"""A task of tf.data service, for benchmarks/data_path.py.

    python benchmarks/data_service.py DISPATCHER ADDRESS

It is the dispatcher if the two addresses are equal, and a data worker if not.
"""

import sys

from tensorflow.data.experimental import service


def main(dispatcher: str, address: str) -> None:
    """Runs a task until it is killed."""
    port = int(address.rpartition(":")[2])
    if address == dispatcher:
        server = service.DispatchServer(service.DispatcherConfig(port=port))
    else:
        config = service.WorkerConfig(dispatcher, worker_address=address, port=port)
        server = service.WorkerServer(config)
    server.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
