"""A synchronous strategy in the test's own process."""

from typing import Any

import tensorflow as tf

import tf_config
import tfdist

from .addresses import free_addresses


def strategy_of_one_worker(
    replicas: int, **options: Any
) -> tfdist.MultiWorkerMirroredStrategy:
    """Returns a strategy of one worker, whose replicas are devices of the CPU."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * replicas
    )
    cluster = tf_config.Cluster(worker=tuple(free_addresses(1)))
    config = tf_config.TFConfig(cluster, tf_config.Task("worker", 0))
    strategy = tfdist.MultiWorkerMirroredStrategy(config, **options)
    assert strategy.num_replicas == replicas
    return strategy
