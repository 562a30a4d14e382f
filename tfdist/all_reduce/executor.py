"""Executes a schedule: sends chunks between devices and sums them there.

It builds a graph of casts, copies and sums, each on its device; in eager mode they run
immediately. TensorFlow's runtime sends a chunk as soon as it is computed, so what
is independent, such as the segments of a chunk, overlaps without further effort.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist.all_reduce.half_precision import to_wire, travels_as
from tfdist.all_reduce.schedule import Transfer, TransferSchedule

IN_FLIGHT_BYTES = 1_000_000
"""The most bytes that may be in flight to a device.

More than arrive during the round trip of a message, so that the link does not idle.
"""

Chunk = list[tf.Tensor]
"""The segments of a chunk. Each is sent and summed separately."""


class ChunkTransfer(NamedTuple):
    """The chunks that one device sends another in one step, one message per segment."""

    sender: int
    receiver: int
    reduces: bool
    chunks: tuple[int, ...]


class Turns:
    """Limits the messages in flight in schedules where each device sends to one other.

    Messages sent at the same time share the link, and all arrive late. Sent in turn,
    the first one can continue to the next device while the others are in flight. This
    takes no extra message: where each device sends to one and receives from one, as in
    a ring, what a device has received tells how much of what it sent has arrived. A
    device may have sent `in_flight_bytes` in excess of what it has received. Two
    messages are always allowed: with one, the link would idle until the sender learns
    of its arrival.
    """

    def __init__(
        self, num_devices: int, in_flight_bytes: float = IN_FLIGHT_BYTES
    ) -> None:
        self._in_flight_bytes = in_flight_bytes
        self._sizes: list[int] = []
        self._arrived: list[list[tf.Tensor]] = [[] for _ in range(num_devices)]

    def take(self, size: int) -> int | None:
        """Adds one message of `size` bytes per device.

        Returns the index of the message that has to arrive before it is sent, or None.
        """
        self._sizes.append(size)
        # The last message is never waited for: the link would idle for a round trip.
        under_way = size + sum(self._sizes[-2:-1])
        for i in reversed(range(len(self._sizes) - 2)):
            under_way += self._sizes[i]
            if under_way > self._in_flight_bytes:
                return i
        return None

    def before(self, device: int, message: int | None) -> list[tf.Tensor]:
        """Returns the control inputs of a send that waits for a message."""
        return [] if message is None else [self._arrived[device][message]]

    def arrived(self, device: int, message: tf.Tensor) -> None:
        """Records a message that a device has received."""
        self._arrived[device].append(message)


def all_reduce(
    schedule: TransferSchedule,
    chunks: Sequence[Sequence[Chunk]],
    devices: Sequence[str],
    wire_dtype: tf.DType | None = None,
    turns: Turns | None = None,
) -> list[list[Chunk]]:
    """Sums the chunks of all devices on all devices.

    The schedule fixes the order of every sum, so equal inputs give equal bits. The sum
    of a chunk is computed once and copied, so all devices end bit-identical.
    `chunks[d][c]` is chunk c of device d: its segments, vectors of one dtype, cut alike
    on all devices. float32 and float64 are sent as `wire_dtype`, and added up in their
    own dtype. `turns` orders several exchanges, where each device sends to one other
    and receives from one other.

    Cost: that of the schedule, and one copy per chunk and device.
    """
    held = [[list(chunk) for chunk in of_device] for of_device in chunks]
    steps = [_parcels(transfers) for transfers in schedule.steps]
    in_turn = all(_is_permutation(parcels, len(devices)) for parcels in steps)
    turns = turns or Turns(len(devices))
    for parcels in steps:
        for segment in range(len(chunks[0][0])):
            awaited = None
            if in_turn:
                size = _message_bytes(held, parcels, segment, wire_dtype)
                awaited = turns.take(size)
            messages = {}
            # A device that sends equal chunks to several others joins and narrows them
            # once. A dict, unlike a set, keeps the order, and so the graph the same.
            for sender, reduces, sends in {
                (p.sender, p.reduces, p.chunks): 0 for p in parcels
            }:
                before = turns.before(sender, awaited)
                with tf.device(devices[sender]), tf.control_dependencies(before):
                    messages[sender, sends] = _message(
                        held[sender], segment, reduces, sends, wire_dtype
                    )
            for sender, receiver, reduces, sends in parcels:
                with tf.device(devices[receiver]):
                    # A copy on the receiver, whose later sends can then wait for it.
                    message = tf.identity(messages[sender, sends])
                    if in_turn:
                        turns.arrived(receiver, message)
                    _take(held[receiver], segment, reduces, sends, message)
    return held


def _message(
    held: Sequence[Chunk],
    segment: int,
    reduces: bool,
    sends: Sequence[int],
    wire_dtype: tf.DType | None,
) -> tf.Tensor:
    """Returns the chunks that a device sends, in one message."""
    own = [held[chunk][segment] for chunk in sends]
    message = to_wire(_joined(own), wire_dtype)
    if not reduces and message.dtype != own[0].dtype:
        # The receivers get a rounded sum. So that all devices end bit-identical, the
        # sender rounds its own copy as well.
        rounded = _like(own, tf.cast(message, own[0].dtype))
        for chunk, value in zip(sends, rounded, strict=True):
            held[chunk][segment] = value
    return message


def _take(
    held: Sequence[Chunk],
    segment: int,
    reduces: bool,
    sends: Sequence[int],
    message: tf.Tensor,
) -> None:
    """Adds a message to a device's chunks, or replaces them."""
    own = [held[chunk][segment] for chunk in sends]
    others = _like(own, tf.cast(message, own[0].dtype))
    for chunk, mine, other in zip(sends, own, others, strict=True):
        held[chunk][segment] = mine + other if reduces else other


def _message_bytes(
    held: Sequence[Sequence[Chunk]],
    parcels: Sequence[ChunkTransfer],
    segment: int,
    wire_dtype: tf.DType | None,
) -> int:
    """Returns the size of a step's first message. The others are about as large."""
    sender, _, _, chunks = parcels[0]
    parts = [held[sender][chunk][segment] for chunk in chunks]
    # A tensor without a static shape counts as empty.
    elements = sum(part.shape.num_elements() or 0 for part in parts)
    return int(elements * travels_as(parts[0].dtype, wire_dtype).size)


def _parcels(transfers: Iterable[Transfer]) -> list[ChunkTransfer]:
    chunks: dict[tuple[int, int, bool], list[int]] = {}
    for _, sender, receiver, chunk, reduces in transfers:
        # One message for all of these chunks: each message costs processor time.
        chunks.setdefault((sender, receiver, reduces), []).append(chunk)
    return [ChunkTransfer(*key, tuple(of_key)) for key, of_key in chunks.items()]


def _is_permutation(parcels: Sequence[ChunkTransfer], num_devices: int) -> bool:
    """Returns True if each device sends one parcel and receives one."""
    everyone = list(range(num_devices))
    senders = sorted(parcel.sender for parcel in parcels)
    receivers = sorted(parcel.receiver for parcel in parcels)
    return senders == everyone == receivers


def _joined(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    return vectors[0] if len(vectors) == 1 else tf.concat(vectors, 0)


def _like(vectors: Sequence[tf.Tensor], joined: tf.Tensor) -> list[tf.Tensor]:
    """Splits a joined vector into vectors of these sizes."""
    if len(vectors) == 1:
        return [joined]
    sizes = [vector.shape.num_elements() for vector in vectors]
    if None in sizes:
        sizes = [tf.size(vector) for vector in vectors]
    return tf.split(joined, sizes, num=len(vectors))


def all_gather(
    blocks: Sequence[tf.Tensor], devices: Sequence[str]
) -> list[list[tf.Tensor]]:
    """Sends all devices' blocks to all, around a ring; returns each device's, in order.

    Cost: `n - 1` steps; a device sends and receives all blocks but one.
    """
    held: list[dict[int, tf.Tensor]] = [{i: each} for i, each in enumerate(blocks)]
    for step in range(len(devices) - 1):
        for receiver, device in enumerate(devices):
            sender = (receiver - 1) % len(devices)
            block = (sender - step) % len(devices)
            with tf.device(device):
                held[receiver][block] = tf.identity(held[sender][block])
    return [[of_device[i] for i in range(len(devices))] for of_device in held]
