"""Executes a schedule: chunks travel from device to device and are added up there.

What is built is a graph (or runs at once, in eager mode) of casts, copies and sums, each
on its device. TensorFlow's runtime sends a chunk as soon as it is there: what does not
depend on each other, as the segments of a chunk, overlaps by itself.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.all_reduce.schedule import Schedule, Transfer

IN_FLIGHT = 2
"""Segments on the way to a device: one arrives while the next one is already sent."""

Chunk = list[tf.Tensor]
"""The segments of a chunk, of which each travels and is added up by itself."""


def all_reduce(
    schedule: Schedule,
    chunks: Sequence[Sequence[Chunk]],
    devices: Sequence[str],
    wire_dtype: tf.DType | None = None,
    in_flight: int = IN_FLIGHT,
) -> list[list[Chunk]]:
    """Sums the chunks of all devices on all devices.

    The order of every sum is that of the schedule, so the same input gives the same
    bits, and the sum of a chunk is computed once and copied, so that all devices end
    with the same bits.

    Segments follow each other closely. Sent all at once they would share the link, and
    all arrive at the end of a step; in turn, the first can go on to the next device
    while the others are still on their way. No message is needed for that: where each
    device sends to one and receives from one, as in a ring, a device has sent as much
    as it has received.

    Cost: what the schedule says, and a copy a chunk and device.

    Args:
        schedule: Who sends what to whom.
        chunks: `chunks[d][c]`: of each device, its chunks; all in the same segments.
        devices: The devices.
        wire_dtype: What chunks travel as; their own dtype if None. They are added up
            in their own dtype.
        in_flight: How many segments a device may have sent beyond those it has
            received.

    Returns:
        The sums, of the form of `chunks`.
    """
    held = [[list(chunk) for chunk in of_device] for of_device in chunks]
    arrived: list[list[tf.Tensor]] = [[] for _ in devices]
    in_turn = all(_is_permutation(step, len(devices)) for step in schedule.steps)
    sent = 0
    for transfers in schedule.steps:
        for segment in range(len(chunks[0][0])):
            messages = {}
            for sender, chunk, reduces in {
                (each.sender, each.chunk, each.reduces): None for each in transfers
            }:
                own = held[sender][chunk]
                due = sent - in_flight
                after = arrived[sender][due : due + 1] if in_turn and due >= 0 else []
                with tf.device(devices[sender]), tf.control_dependencies(after):
                    message = _to_wire(own[segment], wire_dtype)
                    if not reduces:
                        # The others will have no more digits than these.
                        own[segment] = tf.cast(message, own[segment].dtype)
                messages[sender, chunk] = message
            for _, sender, receiver, chunk, reduces in transfers:
                own = held[receiver][chunk]
                with tf.device(devices[receiver]):
                    other = tf.identity(messages[sender, chunk])
                    arrived[receiver].append(other)
                    other = tf.cast(other, own[segment].dtype)
                    own[segment] = own[segment] + other if reduces else other
            sent += 1
    return held


def _is_permutation(transfers: Sequence[Transfer], num_devices: int) -> bool:
    """Whether each device sends to one, and receives from one."""
    everyone = list(range(num_devices))
    senders, receivers = (
        sorted(getattr(each, end) for each in transfers)
        for end in ("sender", "receiver")
    )
    return senders == everyone == receivers


def all_gather(
    blocks: Sequence[tf.Tensor], devices: Sequence[str]
) -> list[list[tf.Tensor]]:
    """Brings the blocks of all devices to all devices, around a ring.

    Cost: `n - 1` steps; a device sends and receives all blocks but one.

    Args:
        blocks: One for each device, of any shapes.
        devices: The devices.

    Returns:
        Of each device, all blocks, in the order of the devices.
    """
    held: list[dict[int, tf.Tensor]] = [{i: each} for i, each in enumerate(blocks)]
    for step in range(len(devices) - 1):
        for receiver, device in enumerate(devices):
            sender = (receiver - 1) % len(devices)
            block = (sender - step) % len(devices)
            with tf.device(device):
                held[receiver][block] = tf.identity(held[sender][block])
    return [[of_device[i] for i in range(len(devices))] for of_device in held]


def _to_wire(chunk: tf.Tensor, wire_dtype: tf.DType | None) -> tf.Tensor:
    if wire_dtype is None or wire_dtype == chunk.dtype:
        return tf.identity(chunk)
    message = tf.cast(chunk, wire_dtype)
    if wire_dtype.max >= chunk.dtype.max / 2**8:  # bfloat16 for float32
        return message
    fits = tf.math.is_finite(message) | ~tf.math.is_finite(chunk)
    largest = tf.reduce_max(tf.abs(chunk))
    complaint = (
        f"a gradient does not fit {wire_dtype.name}, in which it travels (at most "
        f"{float(wire_dtype.max):g}): give wire_dtype='bfloat16', or clip it. Largest:"
    )
    check = tf.debugging.Assert(tf.reduce_all(fits), [complaint, largest])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(message)
