"""Mailboxes on TensorFlow's own servers, read by sessions.

Each worker runs a server of a cluster of its own, so that nobody's death concerns it.
Messages are variables on the server. A peer reads them with a graph of a few operations,
and each read has a deadline. Nothing is kept on the server for a reader that dies.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import tf_config
from tfdist.cluster.board import LeftOpen
from tfdist.cluster.startup import unreachable
from tfdist.local_update.message import (
    LEFT,
    NOTHING,
    GoneError,
    Message,
    SilentError,
    header_bytes,
    message_of,
)

_SLOTS = 2
_ASIDE = 2  # the place next to them
_EVERY_KEY = (1 << 63) - 1

_ENDED = (
    tf.errors.AbortedError,
    tf.errors.UnavailableError,
    tf.errors.CancelledError,
)


class Mailboxes:
    """The `message.Transport` between the workers of a cluster.

    One read may take `timeout` seconds. `server` is this worker's.

    Raises:
        RuntimeError: If the port of this worker is taken.
    """

    def __init__(
        self, addresses: Mapping[tf_config.Task, str], me: int, timeout: float
    ) -> None:
        self._tasks = list(addresses.items())
        task, own = self._tasks[me]
        self._timeout = timeout
        self._graph = _Graph(header_bytes(len(addresses)))
        self._sessions: dict[int, LeftOpen] = {}
        self._lock = threading.Lock()
        # The server computes nothing, so it needs no GPU memory.
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        try:
            alone = tf.train.ClusterSpec({task.job: {task.index: own}})
            self.server = tf.distribute.Server(
                alone, task.job, task.index, config=config
            )
        except tf.errors.OpError as error:
            raise RuntimeError(
                f"no server could start on {own}: another program may use the "
                "port. Choose another one in TF_CONFIG"
            ) from error
        self._own = tf.compat.v1.Session(self.server.target, graph=self._graph.graph)
        nothing = Message(NOTHING, 0, [0] * len(addresses), np.zeros(0, np.uint8))
        for slot in range(_SLOTS + 1):
            self._put(slot, nothing)

    def publish(self, message: Message) -> None:
        """Puts a message into this worker's mailbox, in place of the last but one."""
        self._put(message.key % _SLOTS, message)

    def _put(self, slot: int, message: Message) -> None:
        self._own.run(self._graph.put[slot], {self._graph.value: message.pack()})

    def read(self, worker: int, key: int, begin: int, size: int) -> Message | None:
        """Returns a message of another worker, or None if it is not there yet."""
        found = self._get(worker, key % _SLOTS, key, begin, size)
        if found is None:
            return None
        message, last = found
        if message.key >= key:
            return message
        # A worker that has left says so once, in one of the two places.
        return last if last.key >= LEFT else None

    def publish_aside(self, message: Message) -> None:
        """Puts a message next to the mailbox, in place of the last one there."""
        self._put(_ASIDE, message)

    def read_aside(self, worker: int, with_payload: bool = True) -> Message | None:
        """Returns another worker's message next to its mailbox, if it has one."""
        found = self._get(worker, _ASIDE, 0, 0, -1 if with_payload else 0)
        return found[0] if found is not None and found[0].key != NOTHING else None

    def newest(self, worker: int) -> Message | None:
        """Returns the newest message of another worker without its payload, if any."""
        found = self._get(worker, 0, _EVERY_KEY, 0, 0)
        return max(found, key=lambda each: each.key) if found is not None else None

    def _get(
        self, worker: int, place: int, key: int, begin: int, size: int
    ) -> tuple[Message, Message] | None:
        """Returns the message in a place, and the header of the other place's."""
        graph = self._graph
        options = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * self._timeout))
        feed = {graph.wanted: key, graph.begin: [begin], graph.size: [size]}
        session = self._session(worker)
        try:
            header, payload, other = session.run(
                graph.get[place], feed, options=options
            )
        except tf.errors.FailedPreconditionError:
            return None  # Its server listens, and has no variables yet.
        except _ENDED as error:
            with self._lock:
                # Another read may have connected to its next process meanwhile.
                if self._sessions.get(worker) is session:
                    del self._sessions[worker]
            raise GoneError from error
        except tf.errors.DeadlineExceededError as error:
            raise (GoneError if self.is_gone(worker) else SilentError) from error
        return message_of(header, payload), message_of(other, _NONE)

    def is_gone(self, worker: int) -> bool:
        """Returns True if nothing listens on a worker's address."""
        return bool(unreachable(dict([self._tasks[worker]])))

    def forget(self, worker: int) -> None:
        """Makes the next read connect again: to a process that was started again."""
        with self._lock:
            self._sessions.pop(worker, None)

    def _session(self, worker: int) -> LeftOpen:
        with self._lock:
            if worker not in self._sessions:
                config = tf.compat.v1.ConfigProto(
                    operation_timeout_in_ms=int(1000 * self._timeout)
                )
                self._sessions[worker] = LeftOpen(
                    f"grpc://{self._tasks[worker][1]}",
                    graph=self._graph.graph,
                    config=config,
                )
            return self._sessions[worker]


class _Graph:
    """The operations on a mailbox: the same graph for its owner and for its readers."""

    def __init__(self, header: int) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.value = tf.compat.v1.placeholder(tf.uint8, [None])
            self.wanted = tf.compat.v1.placeholder(tf.int64, [])
            self.begin = tf.compat.v1.placeholder(tf.int64, [1])
            self.size = tf.compat.v1.placeholder(tf.int64, [1])
            slots = [_slot(index) for index in range(_SLOTS + 1)]
            self.put = [
                tf.raw_ops.AssignVariableOp(resource=slot, value=self.value)
                for slot in slots
            ]
            self.get = [
                self._of(slots[slot], slots[1 - slot % _SLOTS], header)
                for slot in range(_SLOTS + 1)
            ]

    def _of(
        self, slot: Any, other: Any, header: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        # The other place first: a worker that has left by then writes nothing any more.
        last = _read(other)[:header]
        with tf.control_dependencies([last]):
            value = _read(slot)
        head = value[:header]
        key = tf.bitcast(head[:8], tf.int64)
        payload = tf.cond(
            key >= self.wanted,
            lambda: self._part(value[header:]),
            lambda: tf.zeros([0], tf.uint8),
        )
        return head, payload, last

    def _part(self, payload: tf.Tensor) -> tf.Tensor:
        # A newer message may be shorter than the one that was asked for.
        begin = tf.minimum(self.begin, tf.size(payload, tf.int64))
        rest = tf.size(payload, tf.int64) - begin
        size = tf.where(self.size < 0, rest, tf.minimum(self.size, rest))
        return tf.slice(payload, begin, size)


_NONE = np.zeros(0, np.uint8)


def _slot(index: int) -> Any:
    return tf.raw_ops.VarHandleOp(
        dtype=tf.uint8, shape=None, shared_name=f"mailbox_{index}"
    )


def _read(slot: Any) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=slot, dtype=tf.uint8)
