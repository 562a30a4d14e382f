"""Numbers that a worker tells the others, which need not wait for them.

Each worker keeps, on its own server, what the others have told it: nobody has to ask a
worker that has ended.
"""

import contextlib
from collections.abc import Mapping, Sequence

import tensorflow as tf

import tf_config
from tf_config import contract
from tfdist.cluster.startup import unreachable

_TIMEOUT_MS = 10_000
_NOTHING = -1


class LeftOpen(tf.compat.v1.Session):
    """A session on another task's server, which forgets it when that task ends.

    To close a session, TensorFlow asks the server, also when the session is deleted and when
    Python exits. For a server that has gone, it waits as long as an operation may take.
    """

    def close(self) -> None:
        """Does nothing."""


class Board:
    """The last number under each key that other workers have told this one.

    Args:
        addresses: The address of each worker's server.
        me: This process's task.
    """

    def __init__(
        self, addresses: Mapping[tf_config.Task, str], me: tf_config.Task
    ) -> None:
        graph = tf.Graph()
        with graph.as_default():
            self._keys = tf.compat.v1.placeholder(tf.string, [None])
            self._numbers = tf.compat.v1.placeholder(tf.int64, [None])
            table = tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.string,
                value_dtype=tf.int64,
                container=contract.STATUS_CONTAINER,
                shared_name="board",
            )
            self._put = tf.raw_ops.LookupTableInsertV2(
                table_handle=table, keys=self._keys, values=self._numbers
            )
            self._get = tf.raw_ops.LookupTableFindV2(
                table_handle=table,
                keys=self._keys,
                default_value=tf.constant(_NOTHING, tf.int64),
            )

        self._graph, self._addresses, self._me = graph, addresses, me
        self._own = self._session(me)
        self._sessions: dict[tf_config.Task, LeftOpen] = {}

    def _session(self, task: tf_config.Task) -> LeftOpen:
        # Without the filter, it would wait for every task of the cluster.
        config = tf.compat.v1.ConfigProto(
            device_filters=[task.device], operation_timeout_in_ms=_TIMEOUT_MS
        )
        target = f"grpc://{self._addresses[task]}"
        return LeftOpen(target, graph=self._graph, config=config)

    def tell(self, key: str, number: int) -> None:
        """Tells all other workers a number.

        Cost: a message of some 100 bytes to each of them.
        """
        for task in self._addresses:
            if task != self._me and not self._has_told(task, key, number):
                # It may have come back: a new session connects to its new process.
                self._has_told(task, key, number)

    def _has_told(self, task: tf_config.Task, key: str, number: int) -> bool:
        # A session waits for a server that has gone.
        if unreachable({task: self._addresses[task]}):
            return False
        session = self._sessions.pop(task, None) or self._session(task)
        with contextlib.suppress(tf.errors.OpError):
            session.run(self._put, {self._keys: [key], self._numbers: [number]})
            self._sessions[task] = session
        return task in self._sessions

    def told(self, keys: Sequence[str]) -> list[int]:
        """Returns the last number under each key; -1 if there is none."""
        return list(map(int, self._own.run(self._get, {self._keys: keys})))
