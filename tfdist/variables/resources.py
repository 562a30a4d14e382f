"""Resources on a ps that are no variables of a model."""

import contextlib
import queue
import secrets
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import _tf


class Resource:
    """A resource of TensorFlow on a ps under a name, deleted with this object.

    Args:
        kind: The operation of `tf.raw_ops` that makes it.
        device: The device of the ps.
        **attributes: The operation's.

    Attributes:
        handle: The tensor by which operations find it.
        device: The device of the ps.
    """

    def __init__(self, kind: str, device: str, **attributes: Any) -> None:
        self.device = device
        # A ps may outlive the chief, and the next chief must not find what this one had.
        name = f"tfdist_{secrets.token_hex(8)}"
        with tf.init_scope(), tf.device(device):
            make = getattr(tf.raw_ops, kind)
            self.handle = make(container="", shared_name=name, **attributes)
        _later(self, device, _destroy, self.handle)


def release_with(owner: Any, variable: tf.Variable) -> None:
    """Gives the memory of a ps's variable back once a Python object is gone.

    TensorFlow keeps the handle that a function has captured forever, and with it the
    value, after the variable, the function and its graph are gone.
    """
    _later(owner, variable.device, _empty, variable.handle, variable.dtype)


def _later(owner: Any, device: str, release: Callable[..., Any], *args: object) -> None:
    # Not at exit: the ps may be gone, and end with the job. The garbage collector may run
    # in any thread, at any time, and a ps may not answer.
    weakref.finalize(owner, _put, device, release, args).atexit = False


def _put(*release: Any) -> None:
    _unused.put(release)
    if not _deletion:
        _deletion.append(threading.Thread(target=_release, daemon=True))
        _deletion[0].start()


def _release() -> None:
    # On the shared executor, what a ps does not answer holds up all threads.
    with _tf.executor_scope(_tf.new_executor()):
        while True:
            device, release, args = _unused.get()
            # A ps that cannot be reached has lost it anyway.
            with contextlib.suppress(tf.errors.OpError), tf.device(device):
                release(*args)
            # While this thread waits for the next one, it must not keep the last.
            del args


def _destroy(handle: tf.Tensor) -> None:
    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


def _empty(handle: tf.Tensor, dtype: tf.DType) -> None:
    # A variable without a name is no resource that could be destroyed: its handles own it.
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], dtype))


_unused: queue.SimpleQueue[Any] = queue.SimpleQueue()
_deletion: list[threading.Thread] = []


class Numbers(Resource):
    """A vector of numbers on a ps, unknown to placements and checkpoints.

    Args:
        device: The device of the ps.
        values: The initial values.
        dtype: The numbers' dtype.
    """

    def __init__(self, device: str, values: Any, dtype: tf.DType = tf.int64) -> None:
        with tf.init_scope():
            initial = tf.constant(values, dtype)
        self._create(device, initial.shape, dtype, lambda: initial)

    def _create(
        self,
        device: str,
        shape: tf.TensorShape,
        dtype: tf.DType,
        initial: Callable[[], tf.Tensor],
    ) -> None:
        """Creates the variable, with a value that is computed on the ps."""
        self._shape, self._dtype = shape, dtype
        super().__init__("VarHandleOp", device, dtype=dtype, shape=shape)
        with tf.init_scope(), tf.device(device):
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=initial())

    def read(self) -> tf.Tensor:
        """Reads them."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)
        value.set_shape(self._shape)
        return value

    def add(self, values: Any) -> tf.Operation:
        """Adds to all of them at the same moment."""
        with tf.device(self.device):
            return tf.raw_ops.AssignAddVariableOp(
                resource=self.handle, value=tf.convert_to_tensor(values, self._dtype)
            )

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self._shape[0])

    def set(self, values: Any) -> tf.Operation:
        """Sets all of them, at once."""
        with tf.device(self.device):
            return tf.raw_ops.AssignVariableOp(
                resource=self.handle, value=tf.convert_to_tensor(values, self._dtype)
            )

    def at(self, index: tf.Tensor) -> tf.Tensor:
        """Reads some of them."""
        with tf.device(self.device):
            values = tf.raw_ops.ResourceGather(
                resource=self.handle, indices=index, dtype=self._dtype
            )
        values.set_shape(index.shape)
        return values

    def add_at(self, index: tf.Tensor, values: tf.Tensor) -> tf.Operation:
        """Adds to some of them."""
        with tf.device(self.device):
            # ResourceScatterAdd takes the lock shared, and loses additions.
            return tf.raw_ops.ResourceScatterNdAdd(
                ref=self.handle,
                indices=tf.expand_dims(index, -1),
                updates=values,
                use_locking=True,
            )

    def set_at(self, index: tf.Tensor, value: tf.Tensor) -> tf.Operation:
        """Sets some of them."""
        with tf.device(self.device):
            return tf.raw_ops.ResourceScatterUpdate(
                resource=self.handle, indices=index, updates=value
            )
