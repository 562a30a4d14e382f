"""`RingStrategy`: one program, with a copy of the model on every worker of a ring."""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.all_reduce.cross_device_ops import AllReduce
from tfdist.cluster.membership import MEMBERSHIP, Given, check_eager, resolver_of
from tfdist.cluster.one_script import chief_of, connect_to_workers
from tfdist.cluster.settings import JobArguments, job_settings, takes_job_arguments
from tfdist.synchronous.ring_extended import RingExtended
from tfdist.synchronous.strategy import (
    WHOLE_BATCH_BYTES,
    SynchronousStrategy,
    check_replica_loss,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RingStrategy(SynchronousStrategy):
    """Trains synchronously on the devices of several workers, from the chief.

    The script runs only on the chief; a worker is a server (`python -m tfdist.server`).
    Variables created in `scope()` have a copy on every worker. A Keras 3 model built
    and compiled in the scope trains with its own `fit`: the chief splits each batch into
    as many parts as there are devices, every device computes the gradients of its
    part, and chunks of them travel around the ring from worker to worker.

    Cost: a step moves each gradient over every worker's link about twice, whatever the
    number of workers (`2 (n - 1) / n` times its bytes in and out), and the examples
    over the chief's link. The chief starts the step on every worker, which takes a few
    milliseconds per worker.

    Args:
        cluster_resolver: The cluster of a chief, which this process is, and workers: a
            `tf.distribute.cluster_resolver.ClusterResolver` or a `tf_config.TFConfig`.
            Read from the environment variable TF_CONFIG by default.
        cross_device_ops: The all-reduce of gradients. `tfdist.RingAllReduce()` by
            default.
        whole_batch: Whether losses and metrics that do not separate over examples are
            computed on the whole batch, and a step that computes such numbers from a part
            of it is refused. With False, each replica computes them from its own part.
        whole_batch_bytes: The most bytes that a step gathers at once of the whole batch,
            256 MiB by default. A step that needs more fails.
        replica_loss: "mean" says that a step computes means over a replica's rows. Then
            gradients, logs and weights are the replicas' mean, weighted by their numbers
            of rows, and a sum becomes a mean of sums. By default, tfdist analyses a custom
            step, and raises an error if it cannot prove the result.
        **job: The arguments of all strategies: `startup_timeout`, `peer_timeout`,
            `checkpoints` or `checkpoint_dir`. If a worker does not respond within
            `peer_timeout`, `fit`, `evaluate` and `predict` raise a `PeerLostError`, or, if
            they are in a wait that cannot be interrupted, the process exits with status 69.

    Raises:
        tf_config.ClusterError: If there is no valid TF_CONFIG, or this process is not
            the chief of a cluster with workers and without ps.
        StartupTimeoutError: If a worker does not respond in time.
        UnequalDevicesError: If the workers have unequal numbers of GPUs.
        TypeError: If `cross_device_ops` is not a `tf.distribute.CrossDeviceOps`.
        ValueError: If `replica_loss` is neither None nor "mean".
        RuntimeError: If this process already has such a strategy, or is in graph mode.
    """

    has_one_script = True

    @takes_job_arguments
    def __init__(
        self,
        cluster_resolver: Given = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        *,
        whole_batch: bool = True,
        whole_batch_bytes: int = WHOLE_BATCH_BYTES,
        replica_loss: str | None = None,
        **job: "Unpack[JobArguments]",
    ) -> None:
        check_replica_loss(replica_loss)
        ops = AllReduce("ring") if cross_device_ops is None else cross_device_ops
        if not isinstance(ops, tf.distribute.CrossDeviceOps):
            raise TypeError(
                "cross_device_ops must be an object such as tfdist.RingAllReduce(); "
                f"received {ops!r}"
            )
        settings = job_settings("RingStrategy", job)
        check_eager("RingStrategy")
        config = chief_of(cluster_resolver, "RingStrategy")
        settings.need_all_workers(len(config.cluster.worker))
        MEMBERSHIP.check_none()
        addresses = connect_to_workers(config, settings.startup_timeout, "RingStrategy")
        MEMBERSHIP.joined(self)
        extended = RingExtended(self, addresses, ops, settings.peer_timeout)
        super().__init__(
            extended,
            resolver_of(config),
            settings.checkpoints,
            whole_batch,
            whole_batch_bytes,
            replica_loss,
        )
        weakref.finalize(self, self.extended.watched.stop).atexit = False

    @property
    def num_workers(self) -> int:
        """The number of processes that run the script: this one."""
        return 1

    def distribute_shares(
        self, shares: tf.data.Dataset
    ) -> tf.distribute.DistributedDataset:
        """Distributes the elements of an endless dataset to the devices in turn."""
        return super().distribute_datasets_from_function(lambda _: shares)

    def copy_from_chief(self, variables: Sequence[tf.Variable]) -> None:
        """Makes all copies equal again after a step that failed on some replicas.

        Otherwise there is nothing to copy: variables start equal, since one process
        creates all copies, and every step keeps them equal.
        """
        if self.copies_may_differ:
            for each in variables:
                each.assign(each.numpy())
            self.copies_may_differ = False

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices in the order of the ring."""
        return tuple(self.extended.worker_devices)
