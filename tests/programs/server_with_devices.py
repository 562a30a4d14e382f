"""A ps or a worker with several logical devices, as a worker has GPUs: DEVICES [KIND]."""

import functools
import sys

import tensorflow as tf

from tfdist import server

devices = int(sys.argv[1])
is_gpu = sys.argv[2:] == ["GPU"]
MEGABYTES = 1024
server.MIN_INTER_OP_THREADS *= devices
make = tf.distribute.Server


@functools.wraps(make)
def with_devices(*args, config, **kwargs):
    if not is_gpu:
        config.device_count["CPU"] = devices
    elif config.device_count.get("GPU") != 0:
        virtual = config.gpu_options.experimental.virtual_devices.add()
        virtual.memory_limit_mb.extend([MEGABYTES] * devices)
    return make(*args, config=config, **kwargs)


tf.distribute.Server = with_devices
sys.exit(server.main())
