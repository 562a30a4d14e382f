"""Measurement of the link between a worker and a ps."""

import time

import tensorflow as tf

from tfdist.parameter_server.seam.ps_strategy import PsStrategy

BYTES = 2**20
"""The size of the copy that measures a link."""

_TRIES = 4
_ENOUGH = 0.5

FASTEST = 2.5e-9
"""The least seconds per byte of a link that is a bottleneck, as at 400 MB/s.

Within a machine, and on faster networks, what binds is the processors that copy.
"""


def seconds_per_byte(strategy: PsStrategy) -> float | None:
    """Measures the link from the first ps to a worker.

    Cost: up to four copies of 1 MiB, as many as fit into half a second.

    Args:
        strategy: A `ParameterServerStrategy`, connected.

    Returns:
        How long a byte takes, by the fastest copy, in seconds; 0 if it is not the link that
        binds; None if no worker is there.
    """
    here = strategy.replicas_here
    if not here:
        return None
    worker = strategy.replicas[min(here)].device
    try:
        # The step for which this is asked may be being traced.
        with strategy.activity.call(), tf.init_scope():
            # Subtract the chief's time for any copy, which is not the link's.
            answer = _fastest_copy(worker, 1)
            copy = _fastest_copy(worker, BYTES // tf.float32.size)
    except tf.errors.OpError:
        # The step notices a lost task, and training recovers from it.
        return None
    # Two measurements of a busy machine may come out in the wrong order.
    found = max(copy - answer, 0.0) / BYTES
    return found if found > FASTEST else 0.0


def _fastest_copy(worker: str, elements: int) -> float:
    seconds: list[float] = []
    while len(seconds) < _TRIES and sum(seconds) < _ENOUGH:
        # A new one each time: TensorFlow keeps what it has copied.
        with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
            value = tf.fill([elements], 1.0)
            # Waits until the ps has it, so that the copy alone is timed.
            value[0].numpy()
        began = time.perf_counter()
        with tf.device(worker):
            # One element comes here, and all have to reach the worker for it.
            tf.identity(value)[0].numpy()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
