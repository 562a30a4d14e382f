"""Questions to all workers at the same time, while they run steps."""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.parameter_server.seam.ps_strategy import PsStrategy, StepsInFlight

_SECONDS_FOR_A_LOOK = 0.05


def on_workers(
    strategy: PsStrategy, workers: Iterable[int], call: Callable[[], Any]
) -> dict[int, Any]:
    """Calls a function for each worker, with the worker's CPU as TensorFlow's device.

    Returns for each worker what was returned, or the `tf.errors.OpError` that was raised.

    Raises:
        StalledError: If a worker does not answer, as in training.
    """
    found: dict[int, Any] = {}

    def ask(worker: int) -> None:
        own = _tf.new_executor()
        try:
            device = f"/job:worker/replica:0/task:{worker}/device:CPU:0"
            with _tf.executor_scope(own), tf.device(device):
                found[worker] = call()
        except tf.errors.OpError as error:
            # The executor would raise it once more.
            own.clear_error()
            found[worker] = error

    _wait_for([functools.partial(ask, each) for each in workers], strategy.in_flight)
    return found


def _wait_for(calls: list[Callable[[], None]], in_flight: StepsInFlight) -> None:
    """Makes some calls at the same time, and ends with an error if training stalls."""
    # Python would wait at its end for the threads of a pool.
    threads = [threading.Thread(target=each, daemon=True) for each in calls]
    for each in threads:
        each.start()
    with in_flight.waiting():
        for each in threads:
            while each.is_alive():
                each.join(_SECONDS_FOR_A_LOOK)
                in_flight.check()
