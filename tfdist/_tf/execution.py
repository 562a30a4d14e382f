"""Execution in this process: devices, threads, peers, executors, waits for results."""

import copy
import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.distribute.cross_device_ops import get_devices_from
from tensorflow.python.distribute.values import Mirrored
from tensorflow.python.eager import cancellation, context, executor
from tensorflow.python.ops.handle_data_util import create_handle_data, set_handle_data

import tf_config
from tfdist._support.types import ConcreteFunction, RemoteValue

_COPY_POLL_SECONDS = 0.0005


def use_own_peer_watch() -> None:
    """Turns off TensorFlow's coordination service, which ends the process of a peer.

    It has to be called before the strategy starts the server of this process.
    """
    context.context().configure_coordination_service(service_type="")


def disable_thread_spinning() -> None:
    """Has TensorFlow create threads that sleep when they have nothing to do.

    It has to be called before the first computation of this process.
    """
    eager = context.context()
    options = tf.compat.v1.ConfigProto()
    if eager._config is not None:
        options.CopyFrom(eager._config)
    options.experimental.disable_thread_spinning = True
    # Settings of `tf.config` are kept apart, and take precedence.
    eager._config = options


def check_peer(task: tf_config.Task, timeout: float) -> None:
    """Asks another task's server for a sign of life, for at most `timeout` seconds.

    Raises:
        tf.errors.OpError: If it does not answer, or is not the one of before.
    """
    context.context().check_collective_ops_peer_health(
        f"/job:{task.job}/replica:0/task:{task.index}", int(timeout * 1000)
    )


def abort_collectives(message: str) -> None:
    """Makes every collective of this process fail, those to come as well."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def devices_of(destinations: Any) -> tuple[str, ...]:
    """Returns the full names of the devices of a value, or of its destination."""
    return tuple(get_devices_from(destinations))


def mirrored(values: Sequence[Any]) -> Any:
    """Returns equal values, one on each device, as one distributed value."""
    return Mirrored(tuple(values))


def set_handle_spec(handle: tf.Tensor, spec: tf.TensorSpec) -> None:
    """Says the dtype and the shape of the variable of a handle, in a graph."""
    set_handle_data(handle, create_handle_data(spec.shape, spec.dtype))


def resource_type(handle: tf.Tensor) -> str:
    """Returns the C++ type of an eager resource, "tensorflow::Var" say, or ""."""
    found = re.search(r'type="([^"]*)"', str(handle))
    return found[1] if found else ""


def new_executor() -> Any:
    """Returns an executor of eager operations, one after the other."""
    return executor.new_executor(enable_async=False)


@contextmanager
def executor_scope(own: Any) -> Iterator[None]:
    """Runs the eager operations of this thread on an executor of its own.

    When TensorFlow's own scope ends, it waits for everything in flight on the previous
    executor. The common executor of all threads has the tensors that a worker is to
    delete, however long that worker takes to answer.
    """
    eager = context.context()._handle
    before = pywrap_tfe.TFE_ContextGetExecutorForThread(eager)
    pywrap_tfe.TFE_ContextSetExecutorForThread(eager, own.handle())
    try:
        yield
    finally:
        pywrap_tfe.TFE_ContextSetExecutorForThread(eager, before)
        # A handle, made anew by each call that returns one; the executor lives on.
        pywrap_tfe.TFE_DeleteExecutor(before)


def give_workers_own_executors(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
) -> None:
    """Keeps the threads that the coordinator has for workers from waiting for others.

    They have an executor each, and come back to that of all threads after each function.
    """
    for worker in coordinator._cluster.workers:
        worker._process_closure = _on_executor(new_executor(), worker._process_closure)


def _on_executor(own: Any, process: Callable[[Any], None]) -> Callable[[Any], None]:
    def processed(closure: Any) -> None:
        function = getattr(closure, "_concrete_function", None)
        with executor_scope(own), prepared_as_told(function):
            process(closure)

    return processed


_not_optimized: weakref.WeakSet[ConcreteFunction] = weakref.WeakSet()
_not_folded: weakref.WeakSet[ConcreteFunction] = weakref.WeakSet()


def leave_out_graph_optimizers(function: ConcreteFunction) -> None:
    """Has workers run the graph of a `ConcreteFunction` as it is.

    A coordinator sends it to workers, whose threads have executors of their own.
    """
    _not_optimized.add(function)


def leave_out_constant_folding(function: ConcreteFunction) -> None:
    """Has workers leave constants in a function's graph as they are.

    The folding infers shapes backwards: it takes a vector that is empty for one of the size
    that a branch needs which is not reached, and breaks graphs that depend on it.
    """
    _not_folded.add(function)


@contextmanager
def prepared_as_told(function: ConcreteFunction) -> Iterator[None]:
    """Sets how the function that this thread calls is prepared."""
    eager = context.context()
    before = eager.function_call_options
    if function in _not_optimized or function in _not_folded:
        config = tf.compat.v1.ConfigProto.FromString(before.config_proto_serialized)
        rewrite = config.graph_options.rewrite_options
        rewrite.disable_meta_optimizer |= function in _not_optimized
        if function in _not_folded:
            rewrite.constant_folding = rewrite.OFF
        # The options are shared with whoever else calls functions on this thread.
        eager.function_call_options = copy.copy(before)
        eager.function_call_options.config_proto_serialized = config
    try:
        yield
    finally:
        eager.function_call_options = before


def new_cancellation() -> Any:
    """Returns an object that can cancel functions that wait."""
    return cancellation.CancellationManager()


def cancelable(function: ConcreteFunction, by: Any) -> Callable[..., Any]:
    """Returns a `ConcreteFunction` that `by.start_cancel()` cancels."""
    cancels: Callable[..., Any] = by.get_cancelable_function(function)
    return cancels


def wait_for_result(output: RemoteValue, timeout: float) -> bool:
    """Waits until a scheduled function has ended, however it did, and its result is here.

    Until the thread of its worker has copied the result, the worker may be lost, and
    another one runs the function again. Whoever copied it meanwhile would get an error.
    Returns whether it has ended within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    if not output._status_available_event.wait(timeout):
        return False
    while not output._has_fetched_to_local and output._error is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        # The copying thread holds the lock while it copies.
        if output._has_fetched_to_local_lock.acquire(timeout=left):
            output._has_fetched_to_local_lock.release()
        time.sleep(min(left, _COPY_POLL_SECONDS))
    return True
