"""What `fit` asks of a strategy whose replicas take every step together."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster.membership import JoinsOnce
from tfdist.keras import hooks
from tfdist.synchronous.fit.driver import SynchronousDriver


class SynchronousStrategy(JoinsOnce, tf.distribute.Strategy):
    """A strategy under which all replicas compute parts of the same batch.

    Its `extended` answers:

    - `worker_index`: the place of this process among those that run the script;
    - `worker_names`: the tasks of these processes, in that order;
    - `is_chief`: whether this process is the one that writes;
    - `communication_options`: how gradients are exchanged;
    - `gather_numbers(numbers)`: some integers of each such process, one row each;
    - `sum_over_replicas(values, options)`: in a replica, the sums of values of one
      dtype;
    - `lost_peers()`: the tasks that do not answer;
    - `call()`: a context, of a call that needs all of them.

    Args:
        extended: Of the strategy.
        resolver: The cluster, and this process's task in it.
    """

    has_one_script = False
    """Whether the script runs in one process alone, for all workers."""

    copies_may_differ = False
    """Whether a step failed on some replica, while others went on to write."""

    # TensorFlow's extended takes from here what to number its collectives from.
    _collective_key_base = 0

    def __init__(
        self,
        extended: tf.distribute.StrategyExtended,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
    ) -> None:
        super().__init__(extended)
        self._resolver = resolver
        self.fit_driver = SynchronousDriver(self)
        hooks.install()

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The cluster, and this process's task in it."""
        return self._resolver

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what is to be written: chief, or worker 0."""
        return bool(self.extended.is_chief)

    @property
    def num_workers(self) -> int:
        """The number of processes that run the script."""
        raise NotImplementedError

    @property
    def num_replicas(self) -> int:
        """The number of devices that train, of all workers."""
        return int(self.num_replicas_in_sync)

    def barrier(self) -> None:
        """Waits until every worker has come here."""
        self.extended.gather_numbers([0])

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any = None
    ) -> Any:
        """As in TensorFlow; `fit` divides the batches of the dataset itself."""
        distributed = super().experimental_distribute_dataset(dataset, options)
        distributed.tfdist_source = dataset
        return distributed

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., tf.data.Dataset], options: Any = None
    ) -> Any:
        """As in TensorFlow; `fit` calls the function itself."""
        distributed = super().distribute_datasets_from_function(dataset_fn, options)
        distributed.tfdist_source = dataset_fn
        return distributed

    def distribute_shares(self, shares: tf.data.Dataset) -> Any:
        """Puts the elements of an endless dataset on this worker's devices in turn."""
        raise NotImplementedError

    def copy_from_chief(self, variables: Sequence[Any]) -> None:
        """Gives Keras variables, on every worker, the value that the chief has."""
        raise NotImplementedError
