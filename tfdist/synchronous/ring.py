"""`RingStrategy`: one program, a copy of the model on every worker, and a ring of them."""

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist.all_reduce.cross_device_ops import AllReduce
from tfdist.cluster import status
from tfdist.cluster.health import NO_ANSWER, Server, problem_of
from tfdist.cluster.membership import MEMBERSHIP, check_eager, config_of, resolver_of
from tfdist.cluster.startup import wait_for
from tfdist.keras.seeds import with_this_generator
from tfdist.liveness.last_resort import LastResort
from tfdist.liveness.peers import WHAT_TO_DO, PeerWatch
from tfdist.synchronous.extended import UnequalDevicesError
from tfdist.synchronous.fit.replica import current_step
from tfdist.synchronous.strategy import SynchronousStrategy

_ADVICE = (
    "Start each of them (python -m launch.task, or python -m launch.local for a whole "
    "cluster on one machine), check the addresses in TF_CONFIG, or give RingStrategy a "
    "longer startup_timeout"
)


class RingStrategy(SynchronousStrategy, tf.distribute.MirroredStrategy):
    """Trains synchronously on the devices of several workers, from the chief.

    The script runs on the chief alone; a worker is a server (`python -m tfdist.server`).
    Variables created in `scope()` have a copy on every worker. A Keras 3 model built
    and compiled in the scope trains with its own `fit`: the chief cuts each batch into
    as many parts as there are devices, every device computes the gradients of its
    part, and chunks of them travel around the ring from worker to worker.

    Cost: a step moves each gradient over every worker's link about twice, whatever the
    number of workers (`2 (n - 1) / n` times its bytes in and out); the examples over
    the chief's link; and the chief tells every worker to begin, which takes it some
    milliseconds a worker.

    Args:
        cluster: The cluster, of a chief and workers, and the chief as this process's
            task. From the environment variable TF_CONFIG unless given.
        cross_device_ops: How gradients meet: a `tfdist.RingAllReduce()` unless given.
        startup_timeout: How long to wait for the workers, in seconds.
        peer_timeout: How long a worker may not answer, later, in seconds. Then `fit`,
            `evaluate` and `predict` fail with a `PeerLostError`, or, where they wait
            and cannot be interrupted, the process ends with status 69.

    Raises:
        tf_config.ClusterError: If there is no valid TF_CONFIG, or this process is not
            the chief of a cluster with workers and without ps.
        StartupTimeoutError: If a worker does not answer in time.
        UnequalDevicesError: If the workers have unequal numbers of GPUs.
        TypeError: If `cross_device_ops` is not a `tf.distribute.CrossDeviceOps`.
        RuntimeError: If this process has such a strategy already, or in graph mode.
    """

    has_one_script = True

    def __init__(
        self,
        cluster: tf_config.TFConfig | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        *,
        startup_timeout: float = 60.0,
        peer_timeout: float = 30.0,
    ) -> None:
        # Imported late: the hooks have to know this class.
        from tfdist.synchronous.fit import hooks

        ops = AllReduce("ring") if cross_device_ops is None else cross_device_ops
        if not isinstance(ops, tf.distribute.CrossDeviceOps):
            raise TypeError(
                "cross_device_ops is an object such as tfdist.RingAllReduce(); "
                f"received {ops!r}"
            )
        check_eager("RingStrategy")
        config = _chief_of(cluster)
        MEMBERSHIP.check_none()
        workers = [each for each in config.cluster.tasks() if each.job == "worker"]
        addresses = {each: config.cluster.address(each) for each in workers}
        wait_for(addresses, startup_timeout, _ADVICE, servers=True)
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(config.cluster.cluster_spec()),
            job_name=config.task.job,
            task_index=config.task.index,
            make_master_device_default=False,
        )
        MEMBERSHIP.joined(self)
        status.publish_here(config)
        self._resolver = resolver_of(config)
        # The base class would make an extension of its own, for local devices.
        tf.distribute.Strategy.__init__(
            self, RingExtended(self, addresses, ops, peer_timeout)
        )
        weakref.finalize(self, self.extended.stop_watching).atexit = False
        hooks.install()

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The cluster, and this process's task in it."""
        return self._resolver

    @property
    def num_workers(self) -> int:
        """The number of processes that run the script: this one."""
        return 1

    def distribute_shares(self, shares: tf.data.Dataset) -> Any:
        """Gives the elements of an endless dataset to the devices in turn."""
        return super().distribute_datasets_from_function(lambda _: shares)

    def copy_from_chief(self, variables: Sequence[Any]) -> None:
        """Makes all copies equal again if a step failed, on some replicas perhaps.

        They began as this process's, and every step keeps them equal.
        """
        if self.copies_may_differ:
            for each in variables:
                each.assign(each.numpy())
            self.copies_may_differ = False

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices in the order of the ring."""
        return tuple(self.extended.worker_devices)


class RingExtended(_tf.MirroredExtended):
    """The `extended` of `RingStrategy`: a mirrored one, with devices of other tasks.

    Args:
        strategy: The strategy.
        workers: The address of each worker, in the order of the ring.
        cross_device_ops: How gradients meet.
        peer_timeout: How long a worker may not answer, in seconds.
    """

    worker_index = 0
    worker_names = ("chief:0",)
    is_chief = True
    communication_options = None

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        workers: Mapping[tf_config.Task, str],
        cross_device_ops: tf.distribute.CrossDeviceOps,
        peer_timeout: float,
    ) -> None:
        devices = _devices([each.device for each in workers])
        # Given devices of several tasks, the base class refuses to be constructed, and
        # then does what is asked of it.
        super().__init__(strategy, devices[:1], cross_device_ops)
        self._initialize_strategy(devices)
        self._servers = {task: Server(address) for task, address in workers.items()}
        self._last_resort = LastResort()
        self._watch = PeerWatch(workers, peer_timeout, self._check, self._lost)
        here = tf.identity(0).device
        # Batches are cut here, where the dataset is; a worker gets its part with the
        # step. What is computed in the scope, initial values say, is computed here.
        self._input_workers_devices = ((here, (here,) * len(devices)),)
        self._default_device = None

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Some integers of each process that runs the script: of this one."""
        return np.array([numbers], np.int64)

    def sum_over_replicas(self, values: Sequence[Any], options: Any = None) -> Any:
        """Adds up values of one dtype over all replicas, in a replica's function."""

        def add_up(strategy: Any, *values: Any) -> Any:
            pairs = [(value, value) for value in values]
            return strategy.extended.batch_reduce_to(
                tf.distribute.ReduceOp.SUM, pairs, options
            )

        # What has no device yet, a constant say, gets the replica's.
        placed = tuple(tf.nest.map_structure(tf.identity, each) for each in values)
        return tf.distribute.get_replica_context().merge_call(add_up, placed)

    def lost_peers(self) -> list[str]:
        """Asks the workers, and returns those that do not answer."""
        return self._watch.lost()

    def stop_watching(self) -> None:
        """Asks the workers no longer."""
        self._watch.stop()

    def call(self) -> contextlib.AbstractContextManager[None]:
        """A call that needs the workers: without one, it fails or the process ends."""
        return self._last_resort.call()

    def _lost(self, what: str, is_back: Callable[[], bool]) -> bool:
        return self._last_resort.lost(f"PeerLostError: {what}. {WHAT_TO_DO}", is_back)

    def _check(self, worker: tf_config.Task, seconds: float) -> None:
        problem = problem_of(self._servers[worker].ask(seconds))
        if problem == NO_ANSWER:
            raise tf.errors.DeadlineExceededError(None, None, problem)
        if problem:
            raise tf.errors.UnavailableError(None, None, problem)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        return super()._call_for_each_replica(with_this_generator(fn), args, kwargs)

    # A step of `fit` has added up its gradients before the optimizer asks, and what is
    # left is the same on every replica: they need not meet.
    def _use_merge_call(self) -> bool:
        step = current_step()
        is_step = step is not None and not step.is_rehearsal
        return not is_step and super()._use_merge_call()


def _devices(workers: list[str]) -> tuple[str, ...]:
    """All GPUs of the workers, or the CPU of each where there are none."""
    gpus = [
        [
            each.name
            for each in tf.config.list_logical_devices("GPU")
            if task in each.name
        ]
        for task in workers
    ]
    counts = [len(each) for each in gpus]
    if len(set(counts)) > 1:
        has = ", ".join(
            f"{task} has {n}" for task, n in zip(workers, counts, strict=True)
        )
        raise UnequalDevicesError(
            f"the workers have unequal numbers of GPUs ({has}), and all have to show "
            "the same number: set CUDA_VISIBLE_DEVICES for those that have more"
        )
    if counts[0]:
        return tuple(gpu for each in gpus for gpu in each)
    return tuple(f"{task}/device:CPU:0" for task in workers)


def _chief_of(cluster: tf_config.TFConfig | None) -> tf_config.TFConfig:
    cluster = config_of(cluster, "--num_ps=0 --num_workers=4 --program=coordinator")
    jobs = cluster.cluster.jobs()
    if cluster.cluster.has_parameter_servers or "worker" not in jobs:
        raise tf_config.ClusterError(
            "RingStrategy needs a chief and workers, and no ps; received the jobs "
            f"{', '.join(jobs)}"
        )
    if cluster.task.job != "chief":
        raise tf_config.ClusterError(
            f"RingStrategy runs on the chief alone; this task is {cluster.task}. A "
            "worker runs `python -m tfdist.server`, which python -m launch.task and "
            "python -m launch.local start for you with --program=coordinator"
        )
    return cluster
