"""A ps or a worker with several logical CPUs, as a worker has GPUs: DEVICES."""

import functools
import sys

import tensorflow as tf

from tfdist import server

devices = int(sys.argv[1])
server.MIN_INTER_OP_THREADS *= devices
make = tf.distribute.Server


@functools.wraps(make)
def with_devices(*args, config, **kwargs):
    config.device_count["CPU"] = devices
    return make(*args, config=config, **kwargs)


tf.distribute.Server = with_devices
sys.exit(server.main())
