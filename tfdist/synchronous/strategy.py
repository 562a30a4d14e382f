"""The base class of strategies whose replicas take every step together."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.cluster.membership import JoinsOnce
from tfdist.cluster.settings import Checkpoints
from tfdist.keras.distributed_data import DistributesForFit
from tfdist.peers import calls
from tfdist.peers.waits import Waits
from tfdist.synchronous.fit.driver import SynchronousDriver

WHOLE_BATCH_BYTES = 1 << 28


def check_replica_loss(replica_loss: str | None) -> None:
    """Checks the argument of that name, before a strategy joins a cluster.

    Raises:
        ValueError: If it is neither None nor "mean".
    """
    if replica_loss not in (None, "mean"):
        raise ValueError(
            'replica_loss must be None, to have what a step computes proved, or "mean", '
            f"for a mean over each replica's rows; received {replica_loss!r}"
        )


class SynchronousStrategy(JoinsOnce, DistributesForFit, tf.distribute.Strategy):
    """A strategy under which all replicas compute parts of the same batch.

    Its `extended` provides:

    - `worker_index`: the index of this process among those that run the script;
    - `worker_names`: the tasks of these processes, in that order;
    - `is_chief`: whether this process is the one that writes;
    - `communication_options`: how gradients are exchanged;
    - `gather_numbers(numbers)`: integers from each such process, one row per process;
    - `gather_texts(text)`: a text from each, by the name of its task;
    - `sum_over_replicas(values, options)`: in a replica, the sums of values of one
      dtype;
    - `lost_peers()`: the tasks that do not respond;
    - `peer_timeout`: how long a task may fail to respond, in seconds;
    - `call()`: a context for a call that needs all of them.

    Args:
        extended: The strategy's `extended`.
        resolver: The cluster, and this process's task in it.
        checkpoints: The checkpoints of `fit`.
        whole_batch: Whether what does not separate over examples is computed on the whole
            batch, or refused; else on each replica's part.
        whole_batch_bytes: The most bytes that a step gathers at once of a whole batch.
        replica_loss: "mean" if the user says that a step computes a mean over a
            replica's rows; None to prove what it computes, or to refuse it.

    Raises:
        ValueError: If `whole_batch_bytes` is not positive.
    """

    has_one_script = False
    """True if the script runs in a single process, for all workers."""

    copies_may_differ = False
    """True if a step failed on some replicas while others wrote their variables."""

    waits: Waits | None = None
    """The points at which workers wait for each other, if each runs the script."""

    # TensorFlow's extended reads the first number of its collectives from its strategy.
    _collective_key_base = 0

    def __init__(
        self,
        extended: tf.distribute.StrategyExtended,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        checkpoints: Checkpoints,
        whole_batch: bool = True,
        whole_batch_bytes: int = WHOLE_BATCH_BYTES,
        replica_loss: str | None = None,
    ) -> None:
        if whole_batch_bytes <= 0:
            raise ValueError(
                f"whole_batch_bytes must be positive; received {whole_batch_bytes}. To "
                "gather nothing, pass whole_batch=False"
            )
        super().__init__(extended)
        self.whole_batch, self.whole_batch_bytes = whole_batch, whole_batch_bytes
        self.replica_loss = replica_loss
        self._resolver = resolver
        self.checkpoints = checkpoints
        self.fit_driver = SynchronousDriver(self)

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The cluster, and this process's task in it."""
        return self._resolver

    @property
    def is_chief(self) -> bool:
        """True if this process writes files: the chief, or else worker 0."""
        return bool(self.extended.is_chief)

    @property
    def num_workers(self) -> int:
        """The number of processes that run the script."""
        raise NotImplementedError

    @property
    def num_replicas(self) -> int:
        """The number of training devices of all workers together."""
        return int(self.num_replicas_in_sync)

    def barrier(self) -> None:
        """Waits until every worker has reached this call."""
        self.fit_driver.agree(calls.BARRIER)

    @property
    def input_contexts(self) -> list[tf.distribute.InputContext]:
        """The input pipeline of this worker."""
        return [
            tf.distribute.InputContext(
                self.num_workers, self.extended.worker_index, self.num_replicas
            )
        ]

    def distribute_shares(
        self, shares: tf.data.Dataset
    ) -> tf.distribute.DistributedDataset:
        """Distributes the elements of an endless dataset to local devices in turn."""
        raise NotImplementedError

    def copy_from_chief(self, variables: Sequence[tf.Variable]) -> None:
        """Sets Keras variables on every worker to the chief's values."""
        raise NotImplementedError
