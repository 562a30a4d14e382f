"""Measures the network between devices, for the cost model, once per group of devices."""

import logging
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.all_reduce.locality import in_one_process
from tfdist.all_reduce.network import Network

_log = logging.getLogger("tfdist")

ROUNDS = 10
BLOCK_BYTES = 8_000_000
REPEATS = 5

SHARED = 1.5
"""How many times as long all devices may take as two, if each sends the same amount.

Each device has its own link. If all together take longer, they wait for processors that
they share."""


def measure_network(devices: Sequence[str]) -> Network:
    """Measures latency, bandwidth and the cost of messages between devices.

        strategy = tfdist.RingStrategy(...)
        network = tfdist.measure_network(strategy.devices)
        tfdist.AllReduce(network=network)

    Each figure is the minimum of five repeats, and the difference between a long and a
    short graph, so that the time to start a graph does not count. They are:

    *   `latency`: a message from the first device to the second, or back.
    *   `bandwidth`: 8 MB from the first device to the second.
    *   `seconds_per_message`: what each further device adds when the first device sends
        to all others and receives from them.
    *   `processor_seconds_per_message`: a message when all send to all at once.
    *   `processor_seconds_per_byte`: 8 MB when each device sends them to the next at
        once, if that takes at least `SHARED` times as long as between two; else 0.

    Cost: about `500 n^2` messages and `50 (n + 1)` MB in total, which takes two seconds
    on links of 1 Gbit/s.

    Args:
        devices: The full names of two or more devices, of different hosts.

    Raises:
        TypeError: If `devices` is not a list.
        ValueError: If there are fewer than two devices, a device is repeated or does
            not exist, or all belong to one process, between which nothing is sent.
    """
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise TypeError(f"devices must be a list of names; received {devices!r}")
    received = ", ".join(devices) or "none"
    if len(devices) < 2 or len(set(devices)) < len(devices):
        raise ValueError(
            f"measure_network needs at least two different devices; received {received}"
        )
    places = [_place(device) for device in devices]
    if in_one_process(places):
        raise ValueError(
            f"there is no network between devices of one process; received {received}. "
            "tfdist.AllReduce() sends nothing between them"
        )
    return measured(devices)


def measured(devices: Sequence[str]) -> Network:
    """Measures the network between devices, which may be in one process."""
    n = len(devices)
    # Between devices of one process, the difference is noise, and may be negative.
    latency = max(_round_seconds(devices[:2], there_and_back) / 2, 1e-7)
    fan = _round_seconds(devices, there_and_back)
    everyone = _round_seconds(devices, all_to_all)
    # Two devices cannot show a gap: assume the latency, the default of `Network`.
    gap = (fan - 2 * latency) / 2 / (n - 2) if n > 2 else latency
    block = _block_seconds(devices[:1], devices[1:2])
    blocks = _block_seconds(devices, [*devices[1:], devices[0]])
    are_shared = blocks >= SHARED * block
    return Network(
        latency=latency,
        bandwidth=BLOCK_BYTES / max(block - latency, 1e-9),
        seconds_per_reduced_byte=_addition_seconds(devices[0]) / BLOCK_BYTES,
        # Noise can push the gap out of the range that `Network` allows.
        seconds_per_message=min(max(gap, 0.0), latency),
        processor_seconds_per_message=max(everyone, 0.0) / (n * (n - 1)),
        processor_seconds_per_byte=blocks / BLOCK_BYTES / n if are_shared else 0.0,
    )


def _place(device: str) -> str:
    """Returns the full name of a device."""
    wanted = tf.DeviceSpec.from_string(device)
    try:
        with tf.device(device):
            place = tf.DeviceSpec.from_string(tf.identity(0.0).device)
    except tf.errors.InvalidArgumentError:
        place = None
    # With soft placement, TensorFlow substitutes another device for a missing one.
    if place is None or place.make_merged_spec(wanted) != place:
        raise ValueError(
            f"there is no device {device!r}: tf.config.list_logical_devices() returns "
            "the devices that exist"
        )
    return str(place.to_string())


Round = Callable[[list[tf.Tensor], Sequence[str]], list[tf.Tensor]]


def there_and_back(values: list[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
    """Sends one message from the first device to each of the others, and one back."""
    heard = [values[0]]
    for device in devices[1:]:
        with tf.device(device):
            heard.append(tf.nn.relu(values[0]))
    with tf.device(devices[0]):
        return [tf.reduce_max(tf.stack(heard)), *heard[1:]]


def all_to_all(values: list[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
    """Sends one message from each device to each of the others."""
    heard = []
    for device in devices:
        with tf.device(device):
            heard.append(tf.reduce_max(tf.stack(values)))
    return heard


def _round_seconds(devices: Sequence[str], one_round: Round) -> float:
    def rounds(count: int) -> Callable[[], tf.Tensor]:
        # The input is an argument: TensorFlow folds constants when it builds the graph.
        @tf.function(input_signature=[tf.TensorSpec([])])
        def graph(value: tf.Tensor) -> tf.Tensor:
            values = []
            for device in devices:
                with tf.device(device):
                    values.append(tf.nn.relu(value))
            for _ in range(count):
                values = one_round(values, devices)
            return tf.stack(values)

        return lambda: graph(tf.constant(1.0))

    return (_least_seconds(rounds(ROUNDS + 1)) - _least_seconds(rounds(1))) / ROUNDS


def _block_seconds(senders: Sequence[str], receivers: Sequence[str]) -> float:
    """Returns how long it takes until each receiver has its sender's block."""

    def largest(places: Sequence[str]) -> Callable[[tf.Tensor], tf.Tensor]:
        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
        def graph(elements: tf.Tensor) -> tf.Tensor:
            found = []
            for sender, place in zip(senders, places, strict=True):
                with tf.device(sender):
                    block = tf.random.uniform(elements[None])
                with tf.device(place):
                    found.append(tf.reduce_max(block))
            return tf.stack(found)

        return graph

    # On the sender, the same graph sends nothing: the difference is the transfer.
    return _longer(largest(receivers), largest(senders))


def _addition_seconds(device: str) -> float:
    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def added(elements: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            block = tf.random.uniform(elements[None])
            # A second operand, as in an all-reduce: `block + block` reads only one.
            return tf.reduce_max(block + tf.reverse(block, [0]))

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def reversed_(elements: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            block = tf.random.uniform(elements[None])
            return tf.reduce_max(tf.reverse(block, [0]))

    return _longer(added, reversed_)


def _longer(
    graph: Callable[[tf.Tensor], tf.Tensor], without: Callable[[tf.Tensor], tf.Tensor]
) -> float:
    """Returns how many seconds longer one graph takes than the other."""
    elements = tf.constant(BLOCK_BYTES // 4)
    return max(
        0.0,
        _least_seconds(lambda: graph(elements))
        - _least_seconds(lambda: without(elements)),
    )


def _least_seconds(run: Callable[[], tf.Tensor]) -> float:
    run().numpy()  # The first run traces the function and opens connections.
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run().numpy()
        taken.append(time.perf_counter() - start)
    # Not the mean: other work on the machine can only add time.
    return min(taken)


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
