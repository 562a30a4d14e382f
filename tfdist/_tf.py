"""The fence: every private symbol of TensorFlow and Keras that tfdist uses.

Each has the reason why no public symbol serves. All of them were tried with
TensorFlow 2.16.2 and 2.21.0 and with Keras 3.12.0 and 3.15.1. Nothing outside
this file imports from `tensorflow.python` or `keras.src`.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.core import Variable as KerasVariable
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses import loss as keras_loss
from keras.src.saving import saving_lib
from tensorflow.python import pywrap_tfe
from tensorflow.python.data.experimental.ops.distribute import (
    _AutoShardDataset,
    compute_batch_size,
)
from tensorflow.python.data.ops.dataset_ops import _VariantDataset
from tensorflow.python.data.ops.shuffle_op import _ShuffleDataset
from tensorflow.python.distribute.collective_all_reduce_strategy import (
    CollectiveAllReduceExtended,
)
from tensorflow.python.distribute.coordinator import coordinator_context
from tensorflow.python.distribute.cross_device_ops import get_devices_from
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.distribute.parameter_server_strategy_v2 import (
    ParameterServerStrategyV2Extended,
)
from tensorflow.python.distribute.ps_values import CachingVariable
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.distribute.values import Mirrored
from tensorflow.python.eager import context, executor
from tensorflow.python.eager.record import could_possibly_record as could_be_recorded
from tensorflow.python.eager.tape import variable_accessed as watch
from tensorflow.python.ops.variables import PartitionedVariable as V1PartitionedVariable
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec
from tensorflow.python.training.saving.saveable_object_util import (
    ResourceVariableSaveable,
)

import tf_config

__all__ = [
    # Keras calls the strategy only while it traces its own step, on the chief. To
    # send the step to a worker, its methods have to answer for themselves.
    "KerasVariable",
    "TFEpochIterator",
    "TensorFlowTrainer",
    # `tf.distribute.StrategyExtended` is public, but the parameter-server class
    # with the methods that decide a variable's ps is not.
    "ParameterServerStrategyV2Extended",
    # The same, of the mirrored strategy, with the devices that it mirrors to.
    "MirroredExtended",
    # What the strategy returns for a variable; its reads and writes are ours.
    "CachingVariable",
    # To recognise a partitioned variable of TensorFlow's own.
    "ShardedVariable",
    # The same, of TF1's `get_variable(partitioner=...)`.
    "V1PartitionedVariable",
    # Saves a variable as a slice of a larger tensor; public only for TF1's own.
    "ResourceVariableSaveable",
    # The same, of rows that have to be put in order first.
    "SaveableObject",
    "SaveSpec",
    # A dataset's graph, and a dataset from it: TensorFlow serializes datasets in its
    # own service and checkpoints, and has no public function for it.
    "dataset_from_graph",
    "dataset_graph",
    "is_of_this_cluster",
    # Where an iterator of a dataset is; its public saving refuses every dataset that
    # shuffles by a random operation, as Keras's arrays do.
    "iterator_state",
    "restore_iterator",
    # Which worker runs a function is known to the coordinator at the call alone.
    "worker_index",
    # `tf.Graph` cannot capture an eager tensor; the graphs of functions can.
    "scratch_graph",
    # Which function a worker runs, and whether it has ended, is known to the thread that
    # the coordinator has for it; and it waits for results without a deadline.
    "observe_workers",
    "wait_for_result",
    # Whether a tape is recording, for what TensorFlow cannot differentiate itself.
    "could_be_recorded",
    # What a call in a graph computes; the function is public, and which one it is not.
    "function_graph",
    # TensorFlow warns of functions that are traced often, by their line; ours are one for
    # each model.
    "function",
    # What runs eagerly runs on one executor for all threads, unless a thread is given
    # its own; and much waits for all that its executor has under way.
    "new_executor",
    "executor_scope",
    "give_workers_own_executors",
    # What the coordinator traces a function of a worker's iterator with.
    "iterator_spec",
    # Tells the active tapes that something with a `handle` was read. Tapes that are
    # given by hand have a public `watch`; the active ones are known to TensorFlow.
    "watch",
    # Keeps the generator that `keras.random` makes for whoever gives no seed. Made in a
    # graph to throw away, it would be of no use after.
    "global_seed_generator",
    "global_seed_generator_kept",
    "set_global_seed_generator",
    # Keras creates the variables of a stateless scope when it is left.
    "variables_to_initialize",
    # A `CrossDeviceOps` is public, and so is that it may be written; what it returns,
    # where it is asked to reduce to, and a gather are not.
    "devices_of",
    "gather",
    "mirrored",
    # Every layer inside a model; `Model.layers` gives the outermost alone.
    "flatten_layers",
    # The class behind `tf.distribute.MultiWorkerMirroredStrategy`: which devices of a
    # process are replicas, and how it waits for its peers, are decided there alone.
    "CollectiveAllReduceExtended",
    "use_own_peer_watch",
    "check_peer",
    "abort_collectives",
    # Keras divides a loss by the number of replicas, also where they have unequal
    # numbers of examples. The two functions that do so belong to no class.
    "keras_loss",
    # The functions that every public way to save a model with Keras ends in.
    "saving_lib",
    "legacy_h5_format",
    # What a resource is: a variable, a table, a writer. Only its text tells.
    "resource_type",
    # The graphs of the functions that an operation calls; `as_graph_def` has them
    # without the lines of the program that made them.
    "inputs_of_functions",
    # Keras shuffles arrays with operations that have no seed, on each worker in
    # another order. `tf.random.set_seed` cannot be taken back.
    "seeded",
    # The files of a dataset that belong to a worker; public only as a part of
    # TensorFlow's own distribution, which divides batches otherwise.
    "shard_files",
    "batch_size_of",
    "draws_at_random",
    "shuffle_seeds",
]


def scratch_graph(name: str) -> tf.Graph:
    """Returns a graph to trace into and throw away.

    Unlike `tf.Graph`, it may capture eager tensors of its surroundings.
    """
    return tf.__internal__.FuncGraph(name)


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
        input_dataset=dataset._variant_tensor,
        external_state_policy=0,  # warn, and carry on
        strip_device_assignment=True,
    )


def dataset_from_graph(graph: tf.Tensor, element_spec: Any) -> tf.data.Dataset:
    """Returns the dataset of a graph, on the device that runs this."""
    return _VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), element_spec)


def is_of_this_cluster(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset was made since this process has joined its cluster.

    Connecting to a cluster renames the local devices. A dataset made before that is
    bound to the old name and cannot be iterated; its graph can.
    """
    here = tf.DeviceSpec.from_string(tf.identity(0).device)
    return tf.DeviceSpec.from_string(dataset._variant_tensor.device).job == here.job


def iterator_state(iterator: Any) -> tf.Tensor:
    """Returns where an iterator of a dataset is, with what it holds: a variant.

    Raises:
        tf.errors.OpError: If a dataset of its pipeline cannot tell.
    """
    return tf.raw_ops.SerializeIterator(
        resource_handle=iterator._iterator_resource,
        external_state_policy=1,  # leave the state of random operations out
    )


def restore_iterator(iterator: Any, state: tf.Tensor) -> None:
    """Brings an iterator of the same dataset to where another was.

    Raises:
        tf.errors.OpError: If it is not the same.
    """
    tf.raw_ops.DeserializeIterator(
        resource_handle=iterator._iterator_resource, serialized=state
    )


def devices_of(destinations: Any) -> tuple[str, ...]:
    """Returns the full names of the devices of a value, or of where it shall go."""
    return tuple(get_devices_from(destinations))


def mirrored(values: Sequence[Any]) -> Any:
    """Returns equal values, one on each device, as one distributed value."""
    return Mirrored(tuple(values))


def gather(
    ops: tf.distribute.CrossDeviceOps,
    per_replica_value: Any,
    destinations: Any,
    axis: int,
    options: Any,
) -> Any:
    """Concatenates the values of all replicas, by these ops."""
    return ops._gather(per_replica_value, destinations, axis, options)


def function(python_function: Callable[..., Any], signature: Any) -> Any:
    """Returns a `tf.function` of this signature, and lets it be one of many."""
    traced = tf.function(python_function, input_signature=signature)
    traced._omit_frequent_tracing_warning = True
    return traced


def function_graph(call: tf.Operation) -> Any:
    """Returns the `FuncGraph` of the function that an operation calls, or None."""
    function = call.graph._get_function(call.get_attr("f").name)
    return getattr(function, "graph", None)


def worker_index() -> tf.Tensor:
    """Returns, in a function being traced, the index of the worker that will run it."""

    def index() -> tf.Tensor:
        worker = coordinator_context.get_current_dispatch_context()
        return tf.constant(worker.worker_index if worker else 0, tf.int64)

    graph = tf.compat.v1.get_default_graph()
    return graph.capture_call_time_value(index, tf.TensorSpec([], tf.int64))


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


def _observe(
    worker: Any, begun: Callable[[int], None], ended: Callable[[int, bool], None]
) -> None:
    process, on_failure = worker._process_closure, worker._on_closure_failure

    def observed(closure: Any) -> None:
        failed.clear()
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


def wait_for_result(output: Any, timeout: float) -> bool:
    """Waits until a scheduled function has ended, however it did.

    Args:
        output: What scheduling it returned.
        timeout: How long to wait, in seconds.

    Returns:
        Whether it has.
    """
    return bool(output._status_available_event.wait(timeout))


def iterator_spec(iterators: Any) -> tf.TypeSpec:
    """Returns the type spec of one worker's iterator, from all workers' iterators."""
    return iterators._values[0]._type_spec


def flatten_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the model's layers, those inside of layers too."""
    return list(model._flatten_layers(include_self=False))


def use_own_peer_watch() -> None:
    """Turns off TensorFlow's coordination service, which ends the process of a peer.

    It has to be called before the strategy starts the server of this process.
    """
    context.context().configure_coordination_service(service_type="")


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
    return _AutoShardDataset(dataset, shards, index, shards)


def batch_size_of(dataset: tf.data.Dataset) -> int | None:
    """Returns the number of examples in a batch of a dataset, or None."""
    size = int(compute_batch_size(dataset))
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


def shuffle_seeds(dataset: tf.data.Dataset) -> list[int]:
    """Returns the two seeds of each `shuffle` of a dataset: zeros if it has none.

    Those of the datasets that its functions make are among them.
    """
    seeds = []
    if isinstance(dataset, _ShuffleDataset):
        seeds += [int(dataset._seed), int(dataset._seed2)]
    for function in dataset._functions():
        for op in function.function.graph.get_operations():
            if op.type.startswith("Shuffle"):
                values = [tf.get_static_value(op.inputs[i]) for i in (2, 3)]
                seeds += [0 if value is None else int(value) for value in values]
    for each in dataset._inputs():
        seeds += shuffle_seeds(each)
    return seeds
