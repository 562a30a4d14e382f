"""What tests of all-reduces share: logical devices, and buckets that are counted."""

import tensorflow as tf

import tfdist


def make_logical_cpus(count: int) -> None:
    """Divides the CPU of this process, which has not used it yet, into devices."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )


class Counted(tfdist.AllReduce):
    """Counts, as they run, the buckets that are exchanged."""

    runs = 0

    def _sum_bucket(self, *bucket):
        def count():
            self.runs += 1
            return 0

        ran = tf.py_function(count, [], tf.int32)
        sums = super()._sum_bucket(*bucket)
        with tf.control_dependencies([ran]):
            return [[tf.identity(value) for value in values] for values in sums]
