"""The `extended` of `RingStrategy`: replicas on the devices of other tasks."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_config
from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.cluster.liveness.watched_workers import WatchedWorkers
from tfdist.synchronous.devices import of_workers
from tfdist.synchronous.replica.current_step import (
    TracesSteps,
    check_not_within,
    exchanging,
    note_equal,
)
from tfdist.synchronous.replica.on_read import created


class RingExtended(TracesSteps, _tf.MirroredExtended):
    """A mirrored `extended` whose devices belong to other tasks.

    Args:
        strategy: The strategy.
        workers: The address of each worker, in the order of the ring.
        cross_device_ops: The all-reduce of gradients.
        peer_timeout: How long a worker may fail to respond, in seconds.
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
        devices = of_workers([each.device for each in workers])
        # The base class's constructor rejects devices of several tasks in eager mode. Its
        # other methods support them.
        super().__init__(strategy, devices[:1], cross_device_ops)
        self._initialize_strategy(devices)
        self.watched = WatchedWorkers(workers, peer_timeout)
        here = tf.identity(0).device
        # Batches are split in this process, which has the dataset, and a worker receives
        # its part with the step. With no default device, initial values and whatever else
        # the scope computes are computed here too.
        self._input_workers_devices = ((here, (here,) * len(devices)),)
        self._default_device = None

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns this process's integers: no other process runs the script."""
        return np.array([numbers], np.int64)

    def gather_texts(self, text: str) -> dict[str, str]:
        """Returns this process's text by its name."""
        return {self.worker_names[0]: text}

    def bytes_of_chief(self, data: bytes) -> bytes:
        """Returns the data of this process, which is the chief."""
        return data

    def sum_over_replicas(
        self,
        values: Sequence[Nest],
        options: tf.distribute.experimental.CommunicationOptions | None = None,
    ) -> Any:
        """Adds up values of one dtype over all replicas, in a replica's function."""

        def add_up(strategy: tf.distribute.Strategy, *values: Nest) -> Any:
            pairs = [(value, value) for value in values]
            return strategy.extended.batch_reduce_to(
                tf.distribute.ReduceOp.SUM, pairs, options
            )

        check_not_within(
            "RingStrategy was to add up gradients or numbers of all replicas",
            "Write that part without it, or use MultiWorkerMirroredStrategy",
        )
        # The ring finds a value's place by its device. A constant has none until `identity`
        # places it on the replica's.
        placed = tuple(tf.nest.map_structure(tf.identity, each) for each in values)
        is_int32 = any(each.dtype == tf.int32 for each in values)
        if is_int32:
            # TensorFlow keeps int32 out of the ring, and takes no two of them at a time.
            placed = tuple(tf.cast(each, tf.int64) for each in placed)
        with exchanging():
            total = tf.distribute.get_replica_context().merge_call(add_up, placed)
        if is_int32:
            total = [tf.cast(each, tf.int32) for each in total]
        note_equal(total)
        return total

    def lost_peers(self) -> list[str]:
        """Probes the workers and returns those that do not respond."""
        return self.watched.lost()

    def call(self) -> contextlib.AbstractContextManager[None]:
        """A call that needs the workers: if one is lost, it fails or the process exits."""
        return self.watched.call()

    def _create_variable(
        self, next_creator: Callable[..., tf.Variable], **kwargs: object
    ) -> tf.Variable:
        return created(super()._create_variable, next_creator, kwargs)

    def _get_cross_device_ops(self, value: Any) -> Any:
        # A synchronized normalization, for example, within a replica. TensorFlow would say, at
        # each, that XLA is why these are its own collectives and not the ring.
        if self._use_merge_call():
            return super()._get_cross_device_ops(value)
        return self._collective_ops
