"""`MultiWorkerMirroredStrategy`: a copy of the model on every worker, in lockstep."""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

import tf_config
from tfdist.all_reduce.cross_device_ops import BUCKET_BYTES
from tfdist.cluster import status
from tfdist.cluster.board import Board
from tfdist.cluster.lost_variables import made_before
from tfdist.cluster.membership import (
    MEMBERSHIP,
    Given,
    check_eager,
    resolver_of,
    worker_config_of,
)
from tfdist.cluster.settings import (
    JobArguments,
    JobSettings,
    job_settings,
    takes_job_arguments,
)
from tfdist.peers.waits import Waits
from tfdist.synchronous.extended import MultiWorkerExtended
from tfdist.synchronous.strategy import (
    WHOLE_BATCH_BYTES,
    SynchronousStrategy,
    check_replica_loss,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MultiWorkerMirroredStrategy(SynchronousStrategy):
    """Trains synchronously on several workers, each of which runs the same script.

    Variables created in `scope()` have a copy on every device of every worker. A
    Keras 3 model built and compiled in the scope trains with its own `fit`: in each
    step, every device computes the gradients of its part of the batch and applies
    the sum of all. `batch_size` and the batches of a dataset are the whole cluster's.
    A custom loop works as with TensorFlow's own strategy of this name.

    Cost: a step moves each gradient over every worker's link about twice.

    Args:
        cluster_resolver: The cluster of workers, optionally with a chief, and this
            process's task in it: a `tf.distribute.cluster_resolver.ClusterResolver` or a
            `tf_config.TFConfig`. Read from the environment variable TF_CONFIG by default.
        communication_options: A `tf.distribute.experimental.CommunicationOptions` for
            the exchange of gradients. By default, they are sent in packs of 2 MB or
            more, the last layer's first, while the backward pass still runs.
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
            `checkpoints` or `checkpoint_dir`. A step fails if it waits longer than
            `peer_timeout` for a task that does not respond.

    Raises:
        tf_config.ClusterError: If there is no valid TF_CONFIG, or this process is
            neither the chief nor a worker of a cluster without ps.
        StartupTimeoutError: If another task does not respond in time.
        UnequalDevicesError: If the workers have unequal numbers of devices.
        ValueError: If `replica_loss` is neither None nor "mean".
        RuntimeError: If this process already has such a strategy, has used TensorFlow
            before, or is in graph mode.
    """

    @takes_job_arguments
    def __init__(
        self,
        cluster_resolver: Given = None,
        communication_options: tf.distribute.experimental.CommunicationOptions
        | None = None,
        *,
        whole_batch: bool = True,
        whole_batch_bytes: int = WHOLE_BATCH_BYTES,
        replica_loss: str | None = None,
        **job: "Unpack[JobArguments]",
    ) -> None:
        check_replica_loss(replica_loss)
        settings = job_settings("MultiWorkerMirroredStrategy", job)
        check_eager("MultiWorkerMirroredStrategy")
        config = worker_config_of(cluster_resolver, "MultiWorkerMirroredStrategy")
        settings.need_all_workers(len(config.cluster.worker))
        MEMBERSHIP.check_none()
        options = communication_options or _default_options()
        resolver = resolver_of(config)
        extended = _extended(self, config, resolver, options, settings)
        MEMBERSHIP.joined(self)
        super().__init__(
            extended,
            resolver,
            settings.checkpoints,
            whole_batch,
            whole_batch_bytes,
            replica_loss,
        )
        self.board = Board(extended.addresses, config.task)
        names, me = extended.worker_names, extended.worker_index
        if len(names) > 1:
            self.waits = Waits(self.board, names, me)
            weakref.finalize(self, self.waits.stop).atexit = False
        status.publish_here(config)

    @property
    def num_workers(self) -> int:
        """The number of processes that train."""
        return len(self.extended.worker_names)

    def distribute_shares(
        self, shares: tf.data.Dataset
    ) -> tf.distribute.DistributedDataset:
        """Distributes the elements of an endless dataset to local devices in turn."""
        has_gpus = self.extended.has_gpus
        if not has_gpus and len(self.extended.worker_devices) == 1:
            # TensorFlow's iterator for several devices passes each element through a
            # thread and two buffers, a good part of a small model's step on a CPU.
            return shares
        # Prefetching to the device costs 0.2 s per epoch and gains nothing on a CPU.
        options = tf.distribute.InputOptions(experimental_fetch_to_device=has_gpus)
        return super().distribute_datasets_from_function(lambda _: shares, options)

    def copy_from_chief(self, variables: Sequence[tf.Variable]) -> None:
        """Sets Keras variables on every worker to the chief's values."""
        self.extended.copy_from_chief(variables)


def _default_options() -> Any:
    # TensorFlow's default is one pack, which is sent only after the whole backward pass.
    # With 4 hosts on links of 200 Mbit/s and 8 layers of 3.1 MB, packs of 3 MB cut a step
    # from 3.37 s to 1.87 s.
    return tf.distribute.experimental.CommunicationOptions(bytes_per_pack=BUCKET_BYTES)


def _extended(
    strategy: MultiWorkerMirroredStrategy,
    config: tf_config.TFConfig,
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
    options: tf.distribute.experimental.CommunicationOptions | None,
    settings: JobSettings,
) -> MultiWorkerExtended:
    try:
        return MultiWorkerExtended(
            strategy,
            config,
            resolver,
            options,
            settings.startup_timeout,
            settings.peer_timeout,
        )
    except RuntimeError as error:
        # TensorFlow's message, "must be configured at program startup", names no remedy.
        if "program startup" not in str(error):
            raise
        made = made_before()
        raise RuntimeError(
            "this process has already used TensorFlow's devices and can no longer join "
            "a cluster. Construct MultiWorkerMirroredStrategy first, before any tensor, "
            f"dataset or model{made and f'. It was made after {made}'}"
        ) from None
