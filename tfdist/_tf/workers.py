"""The coordinator's workers: their functions, and their return after a loss."""

import copy
import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator.cluster_coordinator import (
    ClosureAbortedError,
    Worker,
    WorkerPreemptionHandler,
)
from tensorflow.python.eager import context

from tfdist._support.types import ConcreteFunction, RemoteValue
from tfdist._tf.execution import prepared_as_told

NOT_HERE_YET = "has not joined yet"
"""The end of the coordinator's log line about a worker absent at the start."""


def run_on_devices(
    coordinator: tf.distribute.coordinator.ClusterCoordinator, devices: Sequence[str]
) -> None:
    """Has it send functions to each of these devices, one at a time.

    To the coordinator each device is a worker, with a thread and per-worker values of its
    own. Call it before anything else uses the coordinator, with at least as many devices
    as there are workers.
    """
    cluster = coordinator._cluster
    for worker, device in zip(cluster.workers, devices, strict=False):
        worker.device_name = device
    for index in range(len(cluster.workers), len(devices)):
        cluster.workers.append(Worker(index, devices[index], cluster))


def check_scheduled(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    check: Callable[[Any], None],
) -> None:
    """Calls `check` with each `ConcreteFunction` that is scheduled, before it is sent."""
    queue = coordinator._cluster.closure_queue
    put = queue.put

    def checked(closure: Any, tag: int | None = None) -> None:
        # With a tag, it makes a resource of one worker.
        if tag is None:
            check(closure._concrete_function)
        put(closure, tag)

    queue.put = checked
    schedule = coordinator.schedule

    @functools.wraps(schedule)
    def scheduled(*args: Any, **kwargs: Any) -> Any:
        try:
            return schedule(*args, **kwargs)
        finally:
            # TensorFlow leaves it set where a function is refused, or its trace fails, and
            # would then not warn of a step that runs on the chief.
            coordinator.strategy.extended._being_scheduled = False

    coordinator.schedule = scheduled


def observe_workers(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    begun: Callable[[int], None],
    ended: Callable[[int, bool], None],
) -> None:
    """Calls back with a worker's index when it begins a function, and when that ends.

    `ended` is also told whether the function is over; it is not if it was taken back, to be
    run again.
    """
    for worker in coordinator._cluster.workers:
        _observe(worker, begun, ended)


_this_thread = threading.local()


def _observe(
    worker: Any, begun: Callable[[int], None], ended: Callable[[int, bool], None]
) -> None:
    process, on_failure = worker._process_closure, worker._on_closure_failure

    def observed(closure: Any) -> None:
        failed.clear()
        _this_thread.worker = worker.worker_index
        begun(worker.worker_index)
        execute = closure.execute_on
        closure.execute_on = functools.partial(_naming_the_worker, execute)
        try:
            process(closure)
        finally:
            closure.execute_on = execute
            if not failed:
                ended(worker.worker_index, True)

    def on_observed_failure(closure: Any, error: Exception) -> None:
        # The thread waits for its worker from now on, and the function for another.
        failed.append(True)
        ended(worker.worker_index, False)
        on_failure(closure, error)

    failed: list[bool] = []
    worker._process_closure = observed
    worker._on_closure_failure = on_observed_failure


def _naming_the_worker(execute: Callable[[Any], None], worker: Any) -> None:
    """Executes a function on a worker whose loss TensorFlow may not recognize.

    It takes an error for that of a worker if it names one, and this error does not.

    Raises:
        tf.errors.UnavailableError: If the worker has left.
    """
    try:
        execute(worker)
    except tf.errors.InvalidArgumentError as error:
        if _HAS_LEFT not in error.message:
            raise
        name = f"/job:worker/replica:0/task:{worker.worker_index}"
        raise tf.errors.UnavailableError(
            error.node_def, error.op, f"{name} has left: {error.message}"
        ) from error


_HAS_LEFT = "Primary device is not remote"


class _WorkerRecovery(WorkerPreemptionHandler):
    """Takes one worker back after a failure, independently of the others.

    TensorFlow's own has one thread for all workers. It waits, without a deadline, for
    the first of them that is gone, and takes no other back meanwhile.
    """

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        index: int,
        rejoin: Callable[[int, Callable[[], bool]], None],
    ) -> None:
        # The base starts a thread that runs `_preemption_handler`.
        self._index, self._rejoin = index, rejoin
        super().__init__(context.get_server_def(), coordinator._cluster)

    def _preemption_handler(self) -> None:
        while True:
            self._cluster_due_for_update_or_finish.wait()
            if not self._is_over():
                self._rejoin(self._index, self._is_over)
            if self._is_over():
                return
            with self._cluster_update_lock:
                self._worker_up_cond.notify_all()
                self._cluster_due_for_update_or_finish.clear()

    def _is_over(self) -> bool:
        return not self._should_preemption_thread_run


class _WorkerRecoveries:
    """The recoveries of all workers, where TensorFlow expects a single one."""

    def __init__(self, recoveries: Sequence[_WorkerRecovery]) -> None:
        self._recoveries = recoveries

    def stop(self) -> None:
        for each in self._recoveries:
            each.stop()


def recover_workers_one_by_one(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    worker_of: Sequence[int],
    rejoin: Callable[[int, Callable[[], bool]], None],
    absent: Collection[int],
) -> None:
    """Takes each worker back by itself, and absent ones when they come.

    `worker_of` has the index of the worker that each of the coordinator's stands for.
    `rejoin` waits for the worker with an index, and connects to it; or until the function
    that it is given returns True. To absent ones TensorFlow is not connected yet.
    """

    def not_here() -> None:
        raise tf.errors.UnavailableError(None, None, f"/job:worker {NOT_HERE_YET}")

    cluster = coordinator._cluster
    cluster.failure_handler.stop()
    recoveries = {
        index: _WorkerRecovery(coordinator, index, rejoin) for index in set(worker_of)
    }
    cluster.failure_handler = _WorkerRecoveries(list(recoveries.values()))
    for worker, index in zip(cluster.workers, worker_of, strict=True):
        worker.failure_handler = recoveries[index]
        if index in absent:
            # The first thing that its thread does fails, so that from the beginning it
            # is in the state of one whose worker was lost.
            worker.create_resource(not_here)


def connect_to_workers(addresses: Mapping[int, str]) -> None:
    """Makes these the workers of the cluster that this process is connected to.

    Functions on the remaining servers continue, and the variables of the ps stay. Each
    server must answer, or this waits. Raises an OpError if a server fails meanwhile.
    """
    definition = copy.deepcopy(context.get_server_def())
    (workers,) = (job for job in definition.cluster.job if job.name == "worker")
    workers.tasks.clear()
    workers.tasks.update(addresses)
    context.context().update_server_def(definition)


def run_on_workers(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    function: ConcreteFunction,
    workers: Collection[int],
) -> dict[int, Any]:
    """Runs a `ConcreteFunction` once on each of these workers, after their current one.

    Returns what `has_run` and `was_lost` take, by the index of the worker.
    """

    def run() -> None:
        with prepared_as_told(function):
            function()

    of_all = coordinator._cluster.workers
    return {index: of_all[index].create_resource(run) for index in workers}


def has_run(output: RemoteValue, timeout: float) -> bool:
    """Waits until a function has ended on its worker, or the worker is lost."""
    return bool(output._status_available_event.wait(timeout))


def was_lost(output: RemoteValue) -> bool:
    """Returns True if a function has ended because its worker was lost.

    Raises:
        tf.errors.OpError: If the function has failed.
    """
    error = output._error
    if error is None or isinstance(error, ClosureAbortedError):
        return error is not None
    raise error


def values_per_worker(variable: Any) -> Sequence[Any]:
    """Returns the remote value of a per-worker variable on each worker."""
    values: Sequence[Any] = variable._per_worker_vars._values
    return values


def of_this_worker(handles: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the handle of the worker that is to run the function.

    Call it where a function is traced that a coordinator sends to workers, which are
    observed.
    """
    graph = tf.compat.v1.get_default_graph()
    return graph.capture_call_time_value(
        lambda: handles[_this_thread.worker], tf.TensorSpec([], tf.resource)
    )
