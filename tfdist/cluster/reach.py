"""Makes sure that each worker reaches each ps, before the first step depends on it."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

import tf_config
from tfdist.cluster.startup import StartupTimeoutError, unreachable

_RETRY_SECONDS = 0.1
_AT_ONCE = 16


def have_workers_reach_ps(
    workers: Mapping[tf_config.Task, str], num_ps: int, timeout: float
) -> None:
    """Waits until each worker has received a value from each ps.

    A worker that was there while a ps was away fails in all requests to the new one
    for up to a second, since gRPC tries to connect again only after a pause. The first
    steps of a program that was restarted with its ps would fail by that. Costs one call
    per worker, in parallel. Each worker may try for `timeout` seconds.
    """

    @tf.function
    def values() -> list[tf.Tensor]:
        found = []
        for index in range(num_ps):
            with tf.device(f"/job:ps/replica:0/task:{index}/device:CPU:0"):
                # Not a constant, which TensorFlow would move to the worker.
                found.append(tf.raw_ops.RandomUniform(shape=[1], dtype=tf.float32))
        return [tf.identity(each) for each in found]

    concrete = values.get_concrete_function()

    def reach(worker: tf_config.Task) -> None:
        def receive() -> None:
            with tf.device(f"/job:worker/replica:0/task:{worker.index}/device:CPU:0"):
                for each in concrete():
                    # A remote tensor is only a handle: to fetch it shows that its value
                    # has arrived.
                    each.numpy()

        def is_here() -> bool:
            return not unreachable({worker: workers[worker]})

        try_until_reached(str(worker), receive, is_here, timeout)

    with ThreadPoolExecutor(min(len(workers), _AT_ONCE) or 1) as pool:
        # The list raises a worker's error, which `map` alone would keep to itself.
        list(pool.map(reach, workers))


def try_until_reached(
    worker: str,
    receive: Callable[[], None],
    is_here: Callable[[], bool],
    timeout: float,
) -> None:
    """Calls `receive` until it finds no ps out of reach, for `timeout` seconds at most.

    Any other failure is the worker's own loss, which training recovers from.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            receive()
        except tf.errors.UnavailableError as error:
            if not is_here():
                return
            if time.monotonic() >= deadline:
                raise StartupTimeoutError(
                    f"{worker} cannot reach every ps, tried for {timeout:g} s: "
                    f"{error.message.splitlines()[0]}. The chief reaches both: let no "
                    "firewall be between them, and use addresses in TF_CONFIG that mean "
                    "the same on every host"
                ) from None
            time.sleep(_RETRY_SECONDS)
        except tf.errors.OpError:
            return
        else:
            return
