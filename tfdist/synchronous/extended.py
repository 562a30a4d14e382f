"""What TensorFlow's multi-worker strategy is asked to do otherwise."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist.cluster.startup import wait_for
from tfdist.keras.seeds import with_this_generator
from tfdist.liveness.peers import PeerWatch, explained
from tfdist.synchronous.fit.replica import current_step

# Beyond those that TensorFlow numbers from 1.
_GROUP_OF_WORKERS = 1 << 20


class UnequalModelError(ValueError):
    """The workers build different models, or call `fit` with other arguments."""


class UnequalDevicesError(ValueError):
    """The workers do not have the same number of devices."""


class MultiWorkerExtended(_tf.CollectiveAllReduceExtended):
    """The `extended` of `MultiWorkerMirroredStrategy`.

    Args:
        container_strategy: The strategy.
        config: The cluster, and this process's task.
        resolver: The same, as TensorFlow takes it.
        communication_options: A `tf.distribute.experimental.CommunicationOptions`.
        startup_timeout: How long to wait for the other tasks, in seconds.
        peer_timeout: How long a task may not answer later, in seconds.
    """

    def __init__(
        self,
        container_strategy: tf.distribute.Strategy,
        config: tf_config.TFConfig,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        communication_options: Any,
        startup_timeout: float,
        peer_timeout: float,
    ) -> None:
        self._config = config
        self._startup_timeout = startup_timeout
        self._peer_timeout = peer_timeout
        self._check_health_initial_timeout = startup_timeout
        _tf.use_own_peer_watch()
        super().__init__(
            container_strategy,
            cluster_resolver=resolver,
            communication_options=communication_options,
        )

    def lost_peers(self) -> list[str]:
        """Asks the other tasks, and returns those that do not answer."""
        watch = getattr(self, "_peer_watch", None)
        return watch.lost() if watch else []

    def call(self) -> contextlib.AbstractContextManager[None]:
        """A call that needs the other tasks: without one, its collectives are aborted."""
        return contextlib.nullcontext()

    @property
    def communication_options(self) -> Any:
        """The `tf.distribute.experimental.CommunicationOptions` of the strategy."""
        return self._communication_options

    @property
    def worker_index(self) -> int:
        """The place of this process among the chief and the workers, from 0."""
        return int(self._id_in_cluster)

    @property
    def worker_names(self) -> list[str]:
        """The tasks that run the script, in the order of `worker_index`."""
        tasks = self._config.cluster.tasks()
        return [str(task) for task in tasks if task.job != "evaluator"]

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes: the chief, or else worker 0."""
        return bool(self._is_chief)

    @property
    def has_gpus(self) -> bool:
        """Whether the replicas are GPUs."""
        return bool(self._local_device_type == "GPU")

    def gather_numbers(
        self, numbers: Sequence[int], timeout: float | None = None
    ) -> np.ndarray:
        """Gathers some integers of each worker, in eager mode.

        Args:
            numbers: This worker's; every worker gives as many.
            timeout: After how many seconds to fail; never, unless given.

        Returns:
            A matrix with a row of int64 for each worker.
        """
        matrix = np.zeros((self._num_workers, len(numbers)), np.int64)
        matrix[self.worker_index] = numbers
        return self._sum_over_workers(matrix, timeout)

    def copy_from_chief(self, variables: Sequence[Any]) -> None:
        """Gives Keras variables, on every worker, the value that the chief has.

        Cost: each variable once over the network, in one message.
        """
        mine = [np.asarray(each.numpy()) for each in variables]
        data = np.frombuffer(b"".join(each.tobytes() for each in mine), np.uint8)
        words = np.pad(data, (0, -len(data) % 4)).view(np.int32)
        # Integers, for to add a zero keeps their bits.
        chiefs = words if self.is_chief else np.zeros_like(words)
        data = self._sum_over_workers(chiefs).view(np.uint8)
        ends = np.cumsum([each.nbytes for each in mine])
        for variable, old, end in zip(variables, mine, ends, strict=True):
            value = data[end - old.nbytes : end].view(old.dtype).reshape(old.shape)
            variable.assign(value)

    def _sum_over_workers(
        self, array: np.ndarray, timeout: float | None = None
    ) -> np.ndarray:
        # A new tensor: a constant may be one that was cached on another device.
        value = tf.identity(tf.constant(array))
        options = tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=timeout
        )
        reduce_op = tf.distribute.ReduceOp.SUM
        with explained(self.lost_peers):
            total = self._between_workers.reduce(
                reduce_op, value, value, options=options
            )
            return np.asarray(self._local_results(total)[0])

    def sum_over_replicas(self, values: Sequence[Any], options: Any = None) -> Any:
        """Adds up values of one dtype over all replicas, in a replica's function.

        Unlike `ReplicaContext.all_reduce`, the replicas of a worker need not meet.
        """
        reduce_op = tf.distribute.ReduceOp.SUM
        return self._replica_ctx_all_reduce(reduce_op, list(values), options)

    def _create_variable(
        self, next_creator: Callable[..., tf.Variable], **kwargs: Any
    ) -> Any:
        try:
            with explained(self.lost_peers):
                return super()._create_variable(next_creator, **kwargs)
        except tf.errors.InvalidArgumentError as error:
            if "mismatch" not in error.message:
                raise
            raise UnequalModelError(
                "the workers create different variables: this one is about to create "
                f"{kwargs.get('name') or 'a variable'}, and another one a variable of "
                "another shape or dtype. Every worker runs the script, and must build "
                "the same model in the same order: draw sizes and vocabularies with "
                "the same seed"
            ).with_traceback(error.__traceback__) from None

    # TensorFlow numbers the groups of devices as it meets them. Workers with unequal
    # numbers of devices would wait in different groups, and never tell each other.
    @functools.cached_property
    def _between_workers(self) -> tf.distribute.CrossDeviceOps:
        make, make_keys = type(self._cross_device_ops), type(self._collective_keys)
        return make(
            devices=[self._worker_device],
            group_size=self._num_workers,
            options=self._communication_options,
            collective_keys=make_keys(group_key_start=_GROUP_OF_WORKERS),
        )

    # TensorFlow knows one device of a process without GPUs, however many it has.
    def _initialize_local_devices(
        self, cluster_resolver: Any, worker_device: str
    ) -> tuple[tuple[str, ...], str]:
        here = tf.DeviceSpec.from_string(worker_device)
        kinds = {
            kind: [
                device
                for device in tf.config.list_logical_devices(kind)
                if _is_of_task(device.name, here)
            ]
            for kind in ("GPU", "CPU")
        }
        kind = "GPU" if kinds["GPU"] else "CPU"
        count = len(kinds[kind])
        return tuple(f"{worker_device}/device:{kind}:{i}" for i in range(count)), kind

    # Called once this process listens, and before anything asks the others.
    def _start_check_health_thread(self) -> None:
        cluster, here = self._config.cluster, self._config.task
        peers = {
            task: cluster.address(task)
            for task in cluster.tasks()
            if task.job in ("chief", "worker") and task != here
        }
        wait_for(
            peers,
            self._startup_timeout,
            "Start this script on each of them (python -m launch.task, or python -m "
            "launch.local for a whole cluster on one machine), check the addresses in "
            "TF_CONFIG, or give MultiWorkerMirroredStrategy a longer startup_timeout",
        )
        self._check_device_counts()
        self._peer_watch = PeerWatch(peers, self._peer_timeout)

    def _stop_check_health_thread(self) -> None:
        if hasattr(self, "_peer_watch"):
            self._peer_watch.stop()

    def _check_device_counts(self) -> None:
        try:
            counts = self.gather_numbers(
                [self._num_devices_per_worker], self._startup_timeout
            ).ravel()
        except tf.errors.OpError as error:
            raise TimeoutError(
                f"the other tasks listen, and did not join within "
                f"{self._startup_timeout:g} s ({error.message.splitlines()[0][:200]}). "
                "Check that each runs this script with the same TF_CONFIG cluster, "
                "and that no other program has their ports"
            ) from None
        if len(set(counts)) > 1:
            listed = ", ".join(
                f"{task}: {count}"
                for task, count in zip(self.worker_names, counts, strict=True)
            )
            raise UnequalDevicesError(
                f"every worker needs the same number of devices; received {listed}. "
                "Set CUDA_VISIBLE_DEVICES, or the number of logical devices, so that "
                "all have as many as the one with the fewest"
            )

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        return super()._call_for_each_replica(with_this_generator(fn), args, kwargs)

    # Keras's optimizers ask it. A step of `fit` has reduced its gradients by then, and
    # what is left is the same on every replica: they need not meet. A meeting cannot
    # take place inside of a condition, such as of accumulated gradients.
    def _use_merge_call(self) -> bool:
        step = current_step()
        is_step = step is not None and not step.is_rehearsal
        return not is_step and super()._use_merge_call()


def _is_of_task(device: str, task: tf.DeviceSpec) -> bool:
    spec = tf.DeviceSpec.from_string(device)
    return (spec.job, spec.task) == (task.job, task.task)
