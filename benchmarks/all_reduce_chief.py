"""The chief of all_reduce.py: all-reduces inside one graph, over TensorFlow servers.

Chunks travel from worker to worker; the chief starts the graph and waits for it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import all_reduce_bench
import tensorflow as tf
from all_reduce_bench import Waiter, gradients
from answering import serve

import tf_config
import tfdist
from tfdist.all_reduce.cross_device_ops import BUCKET_BYTES
from tfdist.cluster.startup import wait_for

CHOICE = "choice"
OF_TENSORFLOW = ("ReductionToOneDevice", "HierarchicalCopyAllReduce")
STARTUP_SECONDS = 300.0
SUM = tf.distribute.ReduceOp.SUM


def cross_device_ops(name: str, options: dict[str, Any]) -> Any:
    """Returns ours by the name of its algorithm, TensorFlow's by that of its class.

    Args:
        name: `CHOICE` is ours without an algorithm.
        options: Of the constructor.
    """
    if name in OF_TENSORFLOW:
        return getattr(tf.distribute, name)(**options)
    algorithm = None if name == CHOICE else name
    return tfdist.AllReduce(algorithm, **options)


def per_replica_type() -> type:
    """The type that holds one value per device; it has no public name."""
    devices = [device.name for device in tf.config.list_logical_devices("CPU")][:2]
    mirrored = tf.distribute.MirroredStrategy(devices)
    value = mirrored.run(
        lambda: tf.distribute.get_replica_context().replica_id_in_sync_group
    )
    return type(value)


class Bench(all_reduce_bench.Bench):
    """Functions that reduce, over the workers of a cluster.

    Args:
        devices: One for each worker.
        per_replica: The type of one value a device.
    """

    def __init__(self, devices: Sequence[str], per_replica: type) -> None:
        super().__init__()
        self._devices = devices
        self._per_replica = per_replica

    def defaults(self) -> dict[str, int]:
        """Returns the size of our buckets where none is given."""
        return {"bucket_bytes": BUCKET_BYTES}

    def _rounds(
        self, ops: str, options: dict[str, Any], size: int, rounds: int
    ) -> Callable[[], tf.Tensor]:
        """Chained rounds: each reduces the result of the previous one."""
        reducer = cross_device_ops(ops, options)
        variables = self._held(size, 1)

        def function() -> tf.Tensor:
            for _ in range(rounds):
                value = self._on_each(lambda i: variables[i][0].read_value())
                reduced = reducer.batch_reduce(SUM, [(value, value)])
                done = self._kept(reduced, variables)
            return done

        return function

    def _step(
        self,
        ops: str | None,
        options: dict[str, Any],
        layers: int,
        layer_bytes: int,
        compute_seconds: float,
    ) -> Callable[[], tf.Tensor]:
        """A backward pass whose gradients are reduced, or just kept without `ops`."""
        reducer = cross_device_ops(ops, options) if ops else None
        variables = self._held(layer_bytes, layers)
        waiters = []
        for device in self._devices:
            with tf.device(device):
                waiters.append(Waiter(compute_seconds / layers))

        def function() -> tf.Tensor:
            of_devices = []
            for device, weights, wait in zip(
                self._devices, variables, waiters, strict=True
            ):
                with tf.device(device):
                    of_devices.append(gradients(weights, wait))
            values = [self._per_replica(each) for each in zip(*of_devices, strict=True)]
            if reducer:
                values = reducer.batch_reduce(SUM, [(each, each) for each in values])
            return self._kept(values, variables)

        return function

    def _held(self, size: int, number: int) -> list[list[tf.Variable]]:
        if (size, number) not in self._variables:
            held: list[list[tf.Variable]] = []
            for device in self._devices:
                with tf.device(device):
                    held.append(
                        [tf.Variable(tf.zeros([size // 4])) for _ in range(number)]
                    )
            self._variables[size, number] = held
        return self._variables[size, number]

    def _on_each(self, make: Callable[[int], tf.Tensor]) -> Any:
        values = []
        for index, device in enumerate(self._devices):
            with tf.device(device):
                values.append(make(index))
        return self._per_replica(values)

    def _kept(
        self, values: Sequence[Any], variables: list[list[tf.Variable]]
    ) -> tf.Tensor:
        """Assigns the sums, as a training step does.

        TensorFlow would prune a value that nothing uses.

        Returns:
            A number that is there once all variables have their value, on all devices.
        """
        done = []
        for index, device in enumerate(self._devices):
            with tf.device(device):
                assigned = [
                    variable.assign(each.values[index], read_value=False)
                    for variable, each in zip(variables[index], values, strict=True)
                ]
                with tf.control_dependencies(assigned):
                    done.append(tf.identity(tf.ones([])))
        with tf.device("/job:chief/task:0"):
            return tf.add_n(done)


def make_bench() -> Bench:
    """Connects to the workers."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    config = tf_config.TFConfig.from_environment()
    per_replica = per_replica_type()
    cluster = config.cluster
    servers = {
        task: cluster.address(task) for task in cluster.tasks() if task.job == "worker"
    }
    wait_for(servers, STARTUP_SECONDS, "See their logs")
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(cluster.cluster_spec()),
        job_name="chief",
        task_index=0,
        make_master_device_default=False,
    )
    devices = [
        f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(len(servers))
    ]
    return Bench(devices, per_replica)


if __name__ == "__main__":
    serve(make_bench)
