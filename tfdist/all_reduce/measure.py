"""Measures what connects devices, for the cost model to choose by."""

import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.all_reduce.cost import Network
from tfdist.all_reduce.locality import in_one_process

ROUNDS = 10
BLOCK_BYTES = 8_000_000
REPEATS = 5

SHARED = 1.5
"""If all devices together take so many times as long as two to send as much each, it is
their processors that they wait for: each link is one device's own."""


def measure_network(devices: Sequence[str]) -> Network:
    """Returns latency, bandwidth and the cost of messages between devices, measured.

        strategy = tfdist.RingStrategy(...)
        network = tfdist.measure_network(strategy.devices)
        tfdist.AllReduce(network=network)

    Each figure is the least of five repeats, and the difference of a long and a short
    graph, so that what it takes to start a graph is not counted. `latency` is that of a
    message from the first device to the second or back, `bandwidth` that of 8 MB from
    the first to the second, `seconds_per_message` what each device more adds where the
    first sends to all others and hears from them, and `processor_seconds_per_message`
    what a message takes where all send to all at once. `processor_seconds_per_byte` is
    what 8 MB take where each device sends them to the next at once, if that is at least
    `SHARED` times as long as between two alone; else it is 0.

    Cost: some `500 n^2` messages and `50 (n + 1)` MB, in all. It takes about two seconds
    on links of 1 Gbit/s.

    Args:
        devices: The full names of two devices or more, of different hosts.

    Raises:
        TypeError: If the devices are no list.
        ValueError: If there are fewer than two devices, one is repeated or is not
            there, or all are of one process: nothing is sent between those.
    """
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise TypeError(f"devices are a list of their names; received {devices!r}")
    received = ", ".join(devices) or "none"
    if len(devices) < 2 or len(set(devices)) < len(devices):
        raise ValueError(
            f"measure_network needs two devices or more, each once; received {received}"
        )
    places = [_place(device) for device in devices]
    if in_one_process(places):
        raise ValueError(
            f"no network connects devices of one process; received {received}. There, "
            "tfdist.AllReduce() sends nothing, whatever its network"
        )
    return measured(devices)


def measured(devices: Sequence[str]) -> Network:
    """Measures, wherever the devices are."""
    n = len(devices)
    # Not more than noise, between devices of one process.
    latency = max(_round_seconds(devices[:2], there_and_back) / 2, 1e-7)
    fan = _round_seconds(devices, there_and_back)
    everyone = _round_seconds(devices, all_to_all)
    gap = (fan - 2 * latency) / 2 / (n - 2) if n > 2 else latency
    block = _block_seconds(devices[:1], devices[1:2])
    blocks = _block_seconds(devices, [*devices[1:], devices[0]])
    are_shared = blocks >= SHARED * block
    return Network(
        latency=latency,
        bandwidth=BLOCK_BYTES / max(block - latency, 1e-9),
        seconds_per_reduced_byte=_addition_seconds(devices[0]) / BLOCK_BYTES,
        seconds_per_message=min(max(gap, 0.0), latency),
        processor_seconds_per_message=max(everyone, 0.0) / (n * (n - 1)),
        processor_seconds_per_byte=blocks / BLOCK_BYTES / n if are_shared else 0.0,
    )


def _place(device: str) -> str:
    """The full name of a device."""
    wanted = tf.DeviceSpec.from_string(device)
    try:
        with tf.device(device):
            place = tf.DeviceSpec.from_string(tf.identity(0.0).device)
    except tf.errors.InvalidArgumentError:
        place = None
    # TensorFlow may take another device for one that is not there.
    if place is None or place.make_merged_spec(wanted) != place:
        raise ValueError(
            f"there is no device {device!r}: tf.config.list_logical_devices() returns "
            "those that are"
        )
    return str(place.to_string())


Round = Callable[[list[tf.Tensor], Sequence[str]], list[tf.Tensor]]


def there_and_back(values: list[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
    """One message from the first device to each other one, and one back."""
    heard = [values[0]]
    for device in devices[1:]:
        with tf.device(device):
            heard.append(tf.nn.relu(values[0]))
    with tf.device(devices[0]):
        return [tf.reduce_max(tf.stack(heard)), *heard[1:]]


def all_to_all(values: list[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
    """One message from each device to each other one."""
    heard = []
    for device in devices:
        with tf.device(device):
            heard.append(tf.reduce_max(tf.stack(values)))
    return heard


def _round_seconds(devices: Sequence[str], one_round: Round) -> float:
    def rounds(count: int) -> Callable[[], tf.Tensor]:
        # What is known when the graph is made would be computed then.
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
    """How long it takes until each receiver has a block of its sender."""

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

    return _longer(largest(receivers), largest(senders))


def _addition_seconds(device: str) -> float:
    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def added(elements: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            block = tf.random.uniform(elements[None])
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
    """How much longer the one takes than the other, for as many numbers, in seconds."""
    elements = tf.constant(BLOCK_BYTES // 4)
    return max(
        0.0,
        _least_seconds(lambda: graph(elements))
        - _least_seconds(lambda: without(elements)),
    )


def _least_seconds(run: Callable[[], tf.Tensor]) -> float:
    run().numpy()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run().numpy()
        taken.append(time.perf_counter() - start)
    return min(taken)
