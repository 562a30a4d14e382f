"""The fence: every private symbol of TensorFlow and Keras that tfdist imports.

`_private_api.py` says why each is needed, which public way was tried, and with which
versions. Only this file imports from `tensorflow.python` and `keras.src`, with one
exception: `estimator/_tf.py`, for what needs tensorflow-estimator.
"""

import copy
import functools
import random
import re
import threading
import time
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any

from tfdist import _requires  # noqa: F401  The imports below would fail first.

# isort: split
import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses import loss as keras_loss
from keras.src.saving import saving_lib
from keras.src.trainers.compile_utils import CompileLoss, MetricsList
from tensorflow.python import pywrap_tfe
from tensorflow.python.distribute.collective_all_reduce_strategy import (
    CollectiveAllReduceExtended,
)
from tensorflow.python.distribute.coordinator.cluster_coordinator import (
    WorkerPreemptionHandler,
)
from tensorflow.python.distribute.cross_device_ops import get_devices_from
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.distribute.parameter_server_strategy_v2 import (
    ParameterServerStrategyV2Extended,
)
from tensorflow.python.distribute.ps_values import CachingVariable
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.distribute.values import Mirrored
from tensorflow.python.eager import cancellation, context, executor
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.eager.record import could_possibly_record as could_be_recorded
from tensorflow.python.eager.tape import variable_accessed as watch
from tensorflow.python.ops.variables import PartitionedVariable as V1PartitionedVariable
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

import tf_config

# Symbols that are used as they are; `_private_api.py` has the reason for each.
__all__ = [
    "CachingVariable",
    "CollectiveAllReduceExtended",
    "CompileLoss",
    "MetricsList",
    "MirroredExtended",
    "ParameterServerStrategyV2Extended",
    "SaveSpec",
    "SaveableObject",
    "ShardedVariable",
    "TFEpochIterator",
    "V1PartitionedVariable",
    "could_be_recorded",
    "keras_loss",
    "legacy_h5_format",
    "saving_lib",
    "watch",
]


NOT_HERE_YET = "has not joined yet"

_COPY_POLL_SECONDS = 0.0005
"""Ends what the coordinator logs about a worker that is absent at the start."""


def keep_functions() -> None:
    """Has this process delete no more functions, on its servers or here.

    At its end nobody needs that. Servers may have ended before, and TensorFlow logs an
    error for each function and each of them.
    """
    context.context().remove_function = lambda name: None


def metric_function(metric: keras.metrics.MeanMetricWrapper) -> Any:
    """Returns the function of which a metric is the mean."""
    return metric._fn


def function_options(loss_or_metric: Any) -> dict[str, Any]:
    """Returns the options of the function that a loss or metric wraps, if it does."""
    return getattr(loss_or_metric, "_fn_kwargs", {})


def scratch_graph(name: str) -> tf.Graph:
    """Returns a graph to trace into and throw away.

    Unlike `tf.Graph`, it may capture eager tensors of its surroundings.
    """
    return tf.__internal__.FuncGraph(name)


def retrace_where_differs(key: Callable[[], Any]) -> None:
    """Has each `tf.function` keep the traces apart that are made under different keys.

    Args:
        key: Returns the current key, or None where a function's traces are shared.
    """
    make = function_context.make_function_context

    @functools.wraps(make)
    def make_function_context(scope_type: Any = None) -> Any:
        made, current = make(scope_type), key()
        if current is None:
            return made
        return made._replace(scope_type=(made.scope_type, current))

    function_context.make_function_context = make_function_context


@contextmanager
def global_seed_generator_kept() -> Iterator[None]:
    """Leaves Keras's global seed generator as it was, absent if it was absent."""
    name = "global_seed_generator"
    kept = global_state.get_global_attribute(name)
    try:
        yield
    finally:
        global_state.set_global_attribute(name, kept)


def global_seed_generator() -> Any:
    """Returns what `keras.random` draws from without a seed, or None."""
    return global_state.get_global_attribute("global_seed_generator")


def set_global_seed_generator(generator: Any) -> None:
    """Sets what `keras.random` draws from without a seed; None to have one made."""
    global_state.set_global_attribute("global_seed_generator", generator)


def variables_to_initialize() -> list[Any]:
    """Returns the Keras variables that are still to be created."""
    return list(global_state.get_global_attribute("uninitialized_variables") or ())


def dataset_graph(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns the graph of a dataset, a serialized `GraphDef`."""
    return tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=0,  # warn, and carry on
        strip_device_assignment=True,
    )


def dataset_from_graph(graph: tf.Tensor, element_spec: Any) -> tf.data.Dataset:
    """Returns the dataset of a graph, on the device that runs this."""
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    return tf.data.experimental.from_variant(variant, element_spec)


def is_of_this_cluster(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset was made since this process has joined its cluster.

    Connecting to a cluster renames the local devices. A dataset made before that is
    bound to the old name and cannot be iterated; its graph can.
    """
    here = tf.DeviceSpec.from_string(tf.identity(0).device)
    variant = tf.data.experimental.to_variant(dataset)
    return tf.DeviceSpec.from_string(variant.device).job == here.job


def iterator_state(iterator: Any) -> tf.Tensor:
    """Returns where an iterator of a dataset is, with what it holds: a variant.

    Raises:
        tf.errors.OpError: If a dataset of its pipeline cannot tell.
    """
    return tf.raw_ops.SerializeIterator(
        resource_handle=_resource_of(iterator),
        external_state_policy=1,  # leave the state of random operations out
    )


def restore_iterator(iterator: Any, state: tf.Tensor) -> None:
    """Brings an iterator of the same dataset to where another was.

    Raises:
        tf.errors.OpError: If it is not the same.
    """
    tf.raw_ops.DeserializeIterator(
        resource_handle=_resource_of(iterator), serialized=state
    )


def _resource_of(iterator: Any) -> tf.Tensor:
    (resource,) = tf.nest.flatten(iterator, expand_composites=True)
    return resource


def devices_of(destinations: Any) -> tuple[str, ...]:
    """Returns the full names of the devices of a value, or of its destination."""
    return tuple(get_devices_from(destinations))


def mirrored(values: Sequence[Any]) -> Any:
    """Returns equal values, one on each device, as one distributed value."""
    return Mirrored(tuple(values))


def function(python_function: Callable[..., Any], signature: Any) -> Any:
    """Returns a `tf.function` of this signature, and lets it be one of many."""
    # TensorFlow counts traces by the code object of a Python function, and ours share
    # one among all models; a partial has none, and is counted by itself.
    return tf.function(functools.partial(python_function), input_signature=signature)


def function_graph(call: tf.Operation) -> Any:
    """Returns the `FuncGraph` of the function that an operation calls, or None."""
    function = call.graph._get_function(call.get_attr("f").name)
    return getattr(function, "graph", None)


def observe_workers(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    begun: Callable[[int], None],
    ended: Callable[[int, bool], None],
) -> None:
    """Has it told when a worker begins a function, and when that ends.

    Args:
        coordinator: Of the workers.
        begun: Is called with the worker's index.
        ended: Is called with the worker's index, and whether the function is over; it
            is not if it was taken back, to be run again.
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
        try:
            process(closure)
        finally:
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


class _WorkerRecovery(WorkerPreemptionHandler):
    """Takes one worker back after a failure, whatever has become of the others.

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
    rejoin: Callable[[int, Callable[[], bool]], None],
    absent: Sequence[int],
) -> None:
    """Takes each worker back by itself, and absent ones when they come.

    Args:
        coordinator: Of the workers.
        rejoin: Waits for the worker with an index, and connects to it; or until the
            function that it is given returns True.
        absent: The indices of the workers that TensorFlow is not connected to.
    """

    def not_here() -> None:
        raise tf.errors.UnavailableError(None, None, f"/job:worker {NOT_HERE_YET}")

    cluster = coordinator._cluster
    cluster.failure_handler.stop()
    for worker in cluster.workers:
        worker.failure_handler = _WorkerRecovery(
            coordinator, worker.worker_index, rejoin
        )
    cluster.failure_handler = _WorkerRecoveries(
        [worker.failure_handler for worker in cluster.workers]
    )
    for index in absent:
        # The first thing that its thread does fails, so that from the beginning it is
        # in the state of one whose worker was lost.
        cluster.workers[index].create_resource(not_here)


def connect_to_workers(addresses: Mapping[int, str]) -> None:
    """Makes these the workers of the cluster that this process is connected to.

    What runs on those that stay goes on, and so do the variables of the ps.

    Args:
        addresses: Of each worker by its index; each must answer, or this waits for it.

    Raises:
        tf.errors.OpError: If a server fails meanwhile.
    """
    definition = copy.deepcopy(context.get_server_def())
    (workers,) = (job for job in definition.cluster.job if job.name == "worker")
    workers.tasks.clear()
    workers.tasks.update(addresses)
    context.context().update_server_def(definition)


def values_per_worker(variable: Any) -> Sequence[Any]:
    """Returns the remote value of a per-worker variable on each worker."""
    values: Sequence[Any] = variable._per_worker_vars._values
    return values


def new_executor() -> Any:
    """Returns what runs eager operations, one after the other."""
    return executor.new_executor(enable_async=False)


@contextmanager
def executor_scope(own: Any) -> Iterator[None]:
    """Runs the eager operations of this thread on an executor of its own.

    TensorFlow's own scope waits, when it ends, for all that the executor of before has
    under way. That of all threads has the tensors that a worker is to delete, however
    long that worker takes to answer.
    """
    eager = context.context()._handle
    before = pywrap_tfe.TFE_ContextGetExecutorForThread(eager)
    pywrap_tfe.TFE_ContextSetExecutorForThread(eager, own.handle())
    try:
        yield
    finally:
        pywrap_tfe.TFE_ContextSetExecutorForThread(eager, before)
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
        with executor_scope(own):
            process(closure)

    return processed


def new_cancellation() -> Any:
    """Returns what can cancel functions that wait."""
    return cancellation.CancellationManager()


def cancelable(function: Any, by: Any) -> Callable[..., Any]:
    """Returns a `ConcreteFunction` that `by.start_cancel()` cancels."""
    cancels: Callable[..., Any] = by.get_cancelable_function(function)
    return cancels


def wait_for_result(output: Any, timeout: float) -> bool:
    """Waits until a scheduled function has ended, however it did, and its result is here.

    Until the thread of its worker has copied the result, the worker may be lost, and
    another one runs the function again. Whoever copied it meanwhile would get an error.

    Args:
        output: What scheduling it returned.
        timeout: How long to wait, in seconds.

    Returns:
        Whether it has.
    """
    deadline = time.monotonic() + timeout
    if not output._status_available_event.wait(timeout):
        return False
    while not output._has_fetched_to_local and output._error is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        # That thread has the lock while it copies.
        if output._has_fetched_to_local_lock.acquire(timeout=left):
            output._has_fetched_to_local_lock.release()
        time.sleep(min(left, _COPY_POLL_SECONDS))
    return True


def value_of(variable: keras.Variable) -> Any:
    """Returns what holds a Keras variable's value, not cast to any layer's dtype."""
    return variable._value


def trainable_variables_of(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Returns the variables that an optimizer was built for, in its order."""
    return list(optimizer._trainable_variables)


def flatten_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the model's layers, those inside of layers too."""
    return list(model._flatten_layers(include_self=False))


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
    # What `tf.config` sets is kept apart, and wins.
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


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Gives operations made meanwhile seeds that follow from this one."""
    eager = context.context()
    kept = eager._seed, getattr(eager, "_rng", None)
    # TensorFlow's own setter also empties the cache of kernels, and waits, with the
    # lock of the interpreter, for remote tasks that may be gone.
    eager._seed, eager._rng = seed, random.Random(seed)
    try:
        yield
    finally:
        eager._seed, eager._rng = kept


def resource_type(handle: tf.Tensor) -> str:
    """Returns the C++ type of an eager resource, "tensorflow::Var" say, or ""."""
    found = re.search(r'type="([^"]*)"', str(handle))
    return found[1] if found else ""


def inputs_of_functions(op: tf.Operation, tensor: tf.Tensor) -> Iterator[tf.Tensor]:
    """Returns what functions that an operation calls have in place of its input.

    Args:
        op: A call, a branch, a loop, or one that calls nothing.
        tensor: One of its inputs.
    """
    skipped = 1 if op.type in ("If", "StatelessIf", "Case", "StatelessCase") else 0
    for value in op.node_def.attr.values():
        for called in [value.func, *value.list.func]:
            function = op.graph._get_function(called.name) if called.name else None
            for i, given in enumerate(op.inputs):
                if function is not None and given is tensor:
                    yield function.graph.inputs[i - skipped]


def shard_files(dataset: tf.data.Dataset, shards: int, index: int) -> tf.data.Dataset:
    """Returns the part of a dataset that reads every `shards`-th file."""
    specs = [
        # A dataset passes ragged and sparse tensors on as variants.
        spec if isinstance(spec, tf.TensorSpec) else tf.TensorSpec(None, tf.variant)
        for spec in tf.nest.flatten(dataset.element_spec)
    ]
    policy = dataset.options().experimental_distribute.auto_shard_policy
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=shards,
        index=index,
        auto_shard_policy=policy.value,
        num_replicas=shards,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    sharded = tf.data.experimental.from_variant(variant, dataset.element_spec)
    return sharded.with_options(dataset.options())


def batch_size_of(dataset: tf.data.Dataset) -> int | None:
    """Returns the number of examples in a batch of a dataset, or None."""
    shapes = [
        getattr(spec, "shape", tf.TensorShape(None))
        for spec in tf.nest.flatten(dataset.element_spec)
    ]
    sizes = {shape[0] if shape.rank else None for shape in shapes}
    if None not in sizes:
        return sizes.pop() if len(sizes) == 1 else None
    variant = tf.data.experimental.to_variant(dataset)
    size = int(tf.raw_ops.ComputeBatchSize(input_dataset=variant))
    return None if size < 0 else size


def draws_at_random(dataset: tf.data.Dataset) -> bool:
    """Whether two readings of a dataset may give different elements."""
    if dataset.options().deterministic is False:
        return True
    for function in dataset._functions():
        types = {op.type for op in function.function.graph.get_operations()}
        if any("Random" in each or "PyFunc" in each for each in types):
            return True
    return any(draws_at_random(each) for each in dataset._inputs())


def random_seeds(dataset: tf.data.Dataset) -> list[int]:
    """Returns the two seeds of each `shuffle`, and of each operation that draws.

    Both are 0 if it has none. Those of the datasets that its functions make are among them,
    but no draws of a function that uses a variable or a table: its graph cannot be changed.
    """
    seeds = []
    # By its name, since the class is private; other datasets have seeds, too.
    if type(dataset).__name__ == "_ShuffleDataset":
        seeds += [int(dataset._seed), int(dataset._seed2)]
    for function in dataset._functions():
        captured = function.function.captured_inputs
        uses_resource = any(each.dtype == tf.resource for each in captured)
        for op in function.function.graph.get_operations():
            if op.type.startswith("Shuffle"):
                values = [tf.get_static_value(op.inputs[i]) for i in (2, 3)]
                seeds += [0 if value is None else int(value) for value in values]
            elif {"seed", "seed2"} <= set(op.node_def.attr) and not uses_resource:
                seeds += [op.get_attr("seed"), op.get_attr("seed2")]
    for each in dataset._inputs():
        seeds += random_seeds(each)
    return seeds


def of_this_worker(handles: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the handle at the index of the worker that is to run the function.

    Call it where a function is traced that a coordinator sends to workers, whose workers
    are observed.

    Args:
        handles: One resource handle per worker.
    """
    graph = tf.compat.v1.get_default_graph()
    return graph.capture_call_time_value(
        lambda: handles[_this_thread.worker], tf.TensorSpec([], tf.resource)
    )


def add_control_inputs(op: tf.Operation, others: Iterable[tf.Operation]) -> None:
    """Has an operation of a graph wait for others."""
    op._add_control_inputs(list(others))


def waiting_for(op: tf.Operation) -> list[tf.Operation]:
    """Returns the operations that wait for one, or use what it has computed."""
    consumers = [each for output in op.outputs for each in output.consumers()]
    return [*consumers, *op._control_outputs]
