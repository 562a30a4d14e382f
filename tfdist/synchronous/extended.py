"""The `extended` of `MultiWorkerMirroredStrategy`: overrides of TensorFlow's class."""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.all_reduce.bucket import sum_in_parts
from tfdist.cluster.liveness.peers import PeerWatch, naming_lost_peers
from tfdist.cluster.membership import WORKERS, command_of
from tfdist.cluster.startup import wait_for
from tfdist.keras.graph import is_symbolic
from tfdist.keras.scope import outside_of_scope
from tfdist.peers import agreement, calls, waits
from tfdist.synchronous import devices
from tfdist.synchronous.fit.refusals import SynchronousTrainingError
from tfdist.synchronous.replica.collectives import CARRIED_AS
from tfdist.synchronous.replica.current_step import (
    TracesSteps,
    exchanging,
    note_shapes,
)
from tfdist.synchronous.replica.on_read import created
from tfdist.variables.creation import being_created

# TensorFlow numbers its own groups from 1.
_GROUP_OF_WORKERS = 1 << 20
# TensorFlow's broadcast takes fewer dtypes than its sum.
_BROADCAST_AS = {**CARRIED_AS, tf.bfloat16: tf.float32}
del _BROADCAST_AS[tf.bool]
_EQUAL_ANYWHERE = (keras.initializers.Zeros, keras.initializers.Ones)
"""The initializers of Keras whose values no worker has to be told."""


class MultiWorkerExtended(TracesSteps, _tf.CollectiveAllReduceExtended):
    """The `extended` of `MultiWorkerMirroredStrategy`.

    Args:
        container_strategy: The strategy.
        config: The cluster and this process's task.
        resolver: The same, in TensorFlow's form.
        communication_options: A `tf.distribute.experimental.CommunicationOptions`.
        startup_timeout: How long to wait for the other tasks, in seconds.
        peer_timeout: How long a task may fail to respond afterwards, in seconds.
    """

    def __init__(
        self,
        container_strategy: tf.distribute.Strategy,
        config: tf_config.TFConfig,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        communication_options: tf.distribute.experimental.CommunicationOptions | None,
        startup_timeout: float,
        peer_timeout: float,
    ) -> None:
        self._config = config
        self._startup_timeout = startup_timeout
        self.peer_timeout = peer_timeout
        self._tasks = [t for t in config.cluster.tasks() if t.job != "evaluator"]
        self._task_device = f"/job:{config.task.job}/replica:0/task:{config.task.index}"
        self._sums = itertools.count()
        self._peer_watch: PeerWatch | None = None
        self.communication_options = communication_options
        # Before `super`, which starts this process's server.
        _tf.use_own_peer_watch()
        super().__init__(
            container_strategy,
            cluster_resolver=resolver,
            communication_options=communication_options,
        )

    def lost_peers(self) -> list[str]:
        """Probes the other tasks and returns those that do not respond."""
        return self._peer_watch.lost() if self._peer_watch else []

    def call(self) -> contextlib.AbstractContextManager[None]:
        """A call that needs the other tasks: if one is lost, collectives are aborted."""
        return contextlib.nullcontext()

    @property
    def worker_index(self) -> int:
        """The index of this process among the chief and the workers, from 0."""
        return self._tasks.index(self._config.task)

    @property
    def worker_names(self) -> list[str]:
        """The tasks that run the script, in the order of `worker_index`."""
        return [str(task) for task in self._tasks]

    @property
    def is_chief(self) -> bool:
        """True if this process writes files: the chief, or else worker 0."""
        return self.worker_index == 0

    @property
    def has_gpus(self) -> bool:
        """True if the replicas are GPUs."""
        return "GPU" in self.worker_devices[0]

    def gather_numbers(
        self, numbers: Sequence[int], timeout: float | None = None
    ) -> np.ndarray:
        """Gathers integers from each worker, in eager mode.

        Args:
            numbers: This worker's integers. All workers pass equally many.
            timeout: After how many seconds to fail. Never by default.

        Returns:
            An int64 matrix with one row per worker.
        """
        # A sum of matrices that are zero in the other rows is the gather.
        matrix = np.zeros((len(self._tasks), len(numbers)), np.int64)
        matrix[self.worker_index] = numbers
        return self._sum_over_workers(matrix, timeout)

    def gather_texts(self, text: str) -> dict[str, str]:
        """Returns the text of each worker by its name, in the order of `worker_names`."""
        mine = text.encode()
        # A collective needs tensors of one size on all workers.
        lengths = self.gather_numbers([len(mine)])[:, 0]
        padded = list(mine.ljust(lengths.max(), b"\0"))
        rows = zip(self.gather_numbers(padded), lengths, strict=True)
        texts = [bytes(row[:length].astype(np.uint8)).decode() for row, length in rows]
        return dict(zip(self.worker_names, texts, strict=True))

    def bytes_of_chief(self, data: bytes) -> bytes:
        """Returns the value that the chief has passed.

        Cost: the bytes once over the network, after one number.
        """
        length = int(self.gather_numbers([len(data) if self.is_chief else 0]).sum())
        words = np.zeros(-(-length // 4), np.int32)
        if self.is_chief:
            words.view(np.uint8)[:length] = np.frombuffer(data, np.uint8)
        return self._sum_over_workers(words).tobytes()[:length] if length else b""

    def copy_from_chief(self, variables: Sequence[tf.Variable]) -> None:
        """Sets Keras variables on every worker to the chief's values.

        Cost: each variable once over the network, in one message.
        """
        mine = [np.asarray(each.numpy()) for each in variables]
        data = np.frombuffer(b"".join(each.tobytes() for each in mine), np.uint8)
        words = np.pad(data, (0, -len(data) % 4)).view(np.int32)
        # As integers, because adding 0 keeps all their bits. A float sum would turn -0.0
        # into 0.0, and may change the bits of a NaN.
        chiefs = words if self.is_chief else np.zeros_like(words)
        data = self._sum_over_workers(chiefs).view(np.uint8)
        ends = np.cumsum([each.nbytes for each in mine])
        for variable, old, end in zip(variables, mine, ends, strict=True):
            value = data[end - old.nbytes : end].view(old.dtype).reshape(old.shape)
            variable.assign(value)

    def _sum_over_workers(
        self, array: np.ndarray, timeout: float | None = None
    ) -> np.ndarray:
        if len(self._tasks) == 1:
            return array
        # One CPU per worker. In TensorFlow's own groups, workers with unequal numbers of
        # devices would wait for each other in different groups, without an error.
        with (
            waits.waiting(self._container_strategy().waits, calls.EXCHANGE),
            naming_lost_peers(self.lost_peers),
            tf.device(f"{self._task_device}/device:CPU:0"),
        ):
            total = tf.raw_ops.CollectiveReduceV2(
                # A new tensor: a constant may be cached on another device.
                input=tf.identity(tf.constant(array)),
                group_size=len(self._tasks),
                group_key=_GROUP_OF_WORKERS,
                # Workers match collectives by number, so all must call in one order.
                instance_key=next(self._sums),
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
                timeout_seconds=timeout or 0.0,
            )
            return np.asarray(total)

    def sum_over_replicas(
        self,
        values: Sequence[Nest],
        options: tf.distribute.experimental.CommunicationOptions | None = None,
    ) -> Any:
        """Adds up values of one dtype over all replicas, in a replica's function.

        Unlike `ReplicaContext.all_reduce`, it does not make the threads of a worker's
        replicas wait for each other, so it also works inside a condition.
        """
        if self._num_replicas_in_sync == 1:
            return [tf.identity(each) for each in values]
        note_shapes(values)
        # TensorFlow's own, behind the reduction of whatever a step computes.
        reduce = super(TracesSteps, self)._replica_ctx_all_reduce
        reduce_op = tf.distribute.ReduceOp.SUM
        with exchanging():
            if self.has_gpus:
                return reduce(reduce_op, list(values), options)
            return sum_in_parts(values, lambda parts: reduce(reduce_op, parts, options))

    def _create_variable(
        self, next_creator: Callable[..., tf.Variable], **kwargs: object
    ) -> tf.Variable:
        initial = kwargs.get("initial_value")
        if tf.is_tensor(initial) and is_symbolic(initial):
            # The chief would send it when that graph runs, which is never.
            raise SynchronousTrainingError(
                f"{kwargs.get('name') or 'a tf.Variable'} is created, while the model is "
                "built, from a tensor of a graph, which the workers cannot exchange. "
                "Create it in __init__ or from a NumPy array, or use add_weight"
            )
        try:
            with naming_lost_peers(self.lost_peers):
                return created(super()._create_variable, next_creator, kwargs)
        except tf.errors.InvalidArgumentError as error:
            # TensorFlow broadcasts the initial value by a collective, which checks shape
            # and dtype. Its message names no variable.
            if "mismatch" not in error.message:
                raise
            raise agreement.UnequalModelError(
                "the workers create different variables: this one is about to create "
                f"{kwargs.get('name') or 'a variable'}, another one a variable of a "
                "different shape or dtype. Every worker runs the script and must build "
                "the same model in the same order: draw sizes and vocabularies with "
                "the same seed"
            ).with_traceback(error.__traceback__) from None

    def colocate_vars_with(
        self, colocate_with_variable: tf.Variable
    ) -> contextlib.AbstractContextManager[Any]:
        """Creates variables like the ones that they belong to.

        The weights of a layer that was built outside of the scope are this process's own,
        which starts them as the chief does and updates them as all do. So are their slots.
        """
        if isinstance(colocate_with_variable, tf.distribute.DistributedValues):
            return super().colocate_vars_with(colocate_with_variable)
        return outside_of_scope()

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: tf.Variable, **kwargs: object
    ) -> tf.Variable:
        get = super()._get_variable_creator_initial_value
        initial = kwargs["initial_value"]
        if replica_id == 0 and type(being_created().initializer) in _EQUAL_ANYWHERE:
            # Most slots of optimizers: the chief would send each in a message of its own.
            return initial
        dtype = kwargs.get("dtype") or getattr(initial, "dtype", None)
        carrier = _BROADCAST_AS.get(tf.as_dtype(dtype)) if dtype else None
        if carrier is None or replica_id != 0:
            return get(replica_id, device, primary_var, **kwargs)

        def carried() -> tf.Tensor:
            value = initial() if callable(initial) else initial
            # That of a checkpoint under way.
            value = getattr(value, "wrapped_value", value)
            return tf.cast(tf.convert_to_tensor(value, dtype), carrier)

        kwargs |= {"initial_value": carried, "dtype": carrier}
        broadcast = get(replica_id, device, primary_var, **kwargs)
        return lambda: tf.cast(broadcast(), dtype)

    # TensorFlow uses one device of a process without GPUs, even if it has several logical
    # CPUs.
    def _initialize_local_devices(
        self, cluster_resolver: Any, worker_device: str
    ) -> tuple[tuple[str, ...], str]:
        return devices.of_this_worker(worker_device)

    # TensorFlow calls this when the server of this process listens, and before the first
    # collective.
    def _start_check_health_thread(self) -> None:
        cluster, here = self._config.cluster, self._config.task
        self.addresses = {task: cluster.address(task) for task in self._tasks}
        peers = {task: at for task, at in self.addresses.items() if task != here}
        wait_for(
            peers,
            self._startup_timeout,
            "Start this script on each of them (python -m launch.task, or python -m "
            "launch.local for a whole cluster on one machine), check the addresses in "
            "TF_CONFIG, or pass a longer startup_timeout to MultiWorkerMirroredStrategy",
        )
        self._check_device_counts()
        self._peer_watch = PeerWatch(peers, self.peer_timeout)
        # The threads end with the strategy; at exit they end anyway, as daemons.
        weakref.finalize(self, self._peer_watch.stop).atexit = False

    def _check_device_counts(self) -> None:
        try:
            counts = self.gather_numbers(
                [len(self.worker_devices)], self._startup_timeout
            ).ravel()
        except tf.errors.OpError as error:
            raise TimeoutError(
                "the other tasks listen but did not join within "
                f"{self._startup_timeout:g} s ({error.message.splitlines()[0][:200]}): each "
                "must run this script, with the same TF_CONFIG cluster, and no other program "
                f"may use their ports. {command_of(WORKERS, self._config)}"
            ) from None
        devices.check_equal(dict(zip(self.worker_names, counts, strict=True)))
