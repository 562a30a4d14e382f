"""Which network is between devices: as given, as measured, or an assumed one."""

import logging
from collections.abc import Sequence

import tensorflow as tf

from tfdist.all_reduce.locality import in_one_process
from tfdist.all_reduce.measure import measure_network
from tfdist.all_reduce.network import Network

_log = logging.getLogger("tfdist")

NETWORK = Network(
    latency=2e-4,
    bandwidth=125e6,
    seconds_per_reduced_byte=2e-10,
    seconds_per_message=2e-5,
    processor_seconds_per_message=1.6e-4,
)
"""Links of 1 Gbit/s, and messages as TensorFlow exchanges them, as measured between 4
and 8 namespaces of one machine with 2 cores (docs/algorithms.md)."""


class Networks:
    """The networks between groups of devices, each measured once."""

    def __init__(self, given: Network | None = None) -> None:
        self.given = given
        self._measured: dict[tuple[str, ...], Network] = {}

    def between(self, devices: Sequence[str]) -> Network:
        """Returns the network between devices."""
        if self.given is not None:
            return self.given
        # Devices of one process have no network, and `measure_network` raises for them.
        if in_one_process(devices):
            return NETWORK
        key = tuple(devices)
        if key not in self._measured:
            # The caller may be tracing a function. A measurement has to run now.
            with tf.init_scope():
                # In a TF1 graph, nothing can run before the session.
                if not tf.executing_eagerly():
                    return NETWORK
                self._measured[key] = measure_network(devices)
            _log.info("between %d devices: %s", len(devices), self._measured[key])
        return self._measured[key]
