"""A variable on a ps whose writes inside a step do not undo another worker's.

Keras writes most state as `variable.assign(f(variable))`: a read, then a write. On a
parameter server the two are apart in time, other workers write in between, and a
plain assignment undoes what they wrote. `tfdist.variables.increment` says
which of these writes are applied as increments, under the variable's lock, instead.
One step alone on one worker sees exactly what it would see without this.
"""

import functools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdist import _tf
from tfdist._support.context import having
from tfdist.variables import narrowing
from tfdist.variables.increment import NotAdditiveError, increment
from tfdist.variables.reserved_rows import refusal_of
from tfdist.variables.resources import Numbers, release_with


class ParameterServerVariable(_tf.CachingVariable):
    """Wraps the resource variable that lives on a ps.

    `beside` is the weight that it is an optimizer slot of.

    Cost: a step reads a variable that is not trainable once however often Keras
    asks for it between two writes. The step counter that Adam reads for every one
    of its variables crosses the network once.

    Attributes:
        is_weight: Whether a model learns it, though it may not be trainable itself, as
            a shard is not.
        updated_in: The graphs in which an optimizer updates it.
        set_in: The graphs that set it, which is no increment, beside its optimizer.
        updates_rows: Whether an optimizer updates only the rows that a step has
            looked up, and leaves the others and their slots as they are.
        counts: The change counter of this variable on its ps, or None.
        row_counts: The same, of each row.
        writes_here: How often this process has written it, outside of steps.
        lost: The memory of each worker's last rounding error, or None.
        rows_in_use: Returns how many rows ids have, if it belongs to a table that grows.
    """

    def __init__(
        self,
        variable: tf.Variable,
        num_workers: int,
        is_weight: bool = False,
        beside: Any = None,
    ) -> None:
        super().__init__(variable)
        release_with(self, variable)
        self._num_workers = num_workers
        # A shard is created as not trainable, or a tape would watch it besides the
        # whole variable.
        self.is_weight = is_weight or variable.trainable
        self.beside = beside
        # The tensor that the step being traced has read. It serves later reads of the
        # step, and `increment` looks for it in what the step assigns. It is valid for
        # one graph, for one choice of rows, and until the next write.
        self._view: tf.Tensor | None = None
        self._rows_of_view: tf.Tensor | None = None
        self.updated_in: weakref.WeakSet[tf.Graph] = weakref.WeakSet()
        self.set_in: weakref.WeakSet[tf.Graph] = weakref.WeakSet()
        self._in_update = False
        self.updates_rows = False
        self.counts: Numbers | None = None
        self.row_counts: tuple[Numbers, Numbers] | None = None
        self.writes_here = 0
        self.lost: Any = None
        self.rows_in_use: Callable[[], int] | None = None

    def _rows_seen(self) -> tf.Tensor | None:
        return narrowing.rows_seen(self, self.beside)

    @property
    def is_slot(self) -> bool:
        """True if it is a slot of an optimizer."""
        return self.beside is not None

    def invalidate_read(self) -> None:
        """Makes the next read ask the ps: this step has written the variable."""
        self._view = None
        if tf.executing_eagerly():
            self.writes_here += 1

    def _current_view(self) -> tf.Tensor | None:
        """Returns the value read in the current trace, unless it has written since."""
        view = self._view
        # Eager tensors have no operation for `increment` to look for.
        if view is None or tf.executing_eagerly():
            return None
        # A view of all rows, or of other rows, is not what a narrowed update reads.
        if self._rows_of_view is not self._rows_seen():
            return None
        # A tensor of another trace, or of a loop's body, cannot be used in this graph.
        return view if view.graph is tf.compat.v1.get_default_graph() else None

    def read_value(self) -> tf.Tensor:
        """Reads the value; a step that has read it already gets the same view."""
        # A gradient flows to a trainable variable from the reads under the tape,
        # and the last read may have been outside of it. No tape sees an update.
        rows = self._rows_seen()
        if rows is None and self.rows_in_use is not None:
            # As weight decay does: it would take the memory of all rows.
            raise refusal_of(self.name)
        view = None if self.trainable and rows is None else self._current_view()
        if view is None:
            view = super().read_value() if rows is None else self._v.sparse_read(rows)
            self._view = None if tf.executing_eagerly() else view
            self._rows_of_view = rows
        return view

    def value(self) -> tf.Tensor:
        """Reads the value, as `read_value` does."""
        return self.read_value()

    def __getitem__(self, place: Any) -> tf.Tensor:
        """Returns a slice of the value, which can be assigned to as TensorFlow's can."""
        if tf.executing_eagerly():
            return self._v[place]
        result = tf.convert_to_tensor(self)[place]

        def assign(value: Any, name: str | None = None) -> Any:
            self.invalidate_read()
            return self._v[place].assign(value, name)

        result.assign = assign
        return result

    def look_up(self, rows: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Looks up rows. Each of them travels once, and so does its gradient.

        Rows are indices of any shape, S; the result has the shape S + shape[1:].
        """
        return each_row_once(self.sparse_read, rows, self.shape[1:])

    def _dense_var_to_tensor(
        self, dtype: Any = None, name: str | None = None, as_ref: bool = False
    ) -> Any:
        if dtype is not None and not tf.as_dtype(dtype).is_compatible_with(self.dtype):
            # TensorFlow then tries its other conversions before it raises.
            return NotImplemented
        return self.read_value()

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        # The base class takes no `copy`, and NumPy 2 warns of that.
        return np.asarray(self.numpy(), dtype=dtype)

    def in_update(self) -> AbstractContextManager[None]:
        """Notes that an optimizer updates the variable."""
        self.updated_in.update(_tf.graphs_being_traced())
        return having(self, _in_update=True)

    def assign(
        self,
        value: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Sets the value, or adds the change since this step read it.

        Raises:
            NotAdditiveError: If a step sets a variable that sums over the workers,
                as those of a metric do.
        """
        # The write makes the view stale, also where the lines below raise.
        view, rows = self._current_view(), self._rows_seen()
        self.invalidate_read()
        if view is not None:
            value = tf.convert_to_tensor(value, dtype=self.dtype)
            with tf.device(value.device):
                added = increment(value, view, self.is_weight, self._num_workers)
            if added is not None:
                return self.assign_add(added, name=name, read_value=read_value)
            # The last writer would win, and erase what the others counted.
            if self.aggregation == tf.VariableAggregation.SUM:
                raise NotAdditiveError(
                    f"{self.name} sums over the workers, and this step sets it to a "
                    "value of its own (a maximum, say, or 0 by reset_state), so that "
                    "workers would lose each other's updates. Write what the step adds, "
                    "as variable.assign_add(...), compute the value from such sums, or "
                    "reset metrics between epochs. To accumulate gradients, use a larger "
                    "batch, or tfdist.MultiWorkerMirroredStrategy()"
                )
        if not self._in_update:
            self.set_in.update(_tf.graphs_being_traced())
        if rows is not None:
            value = tf.convert_to_tensor(value, dtype=self.dtype)
            # The value has only these rows, so a plain assignment would not fit the
            # variable.
            return self._v.scatter_update(tf.IndexedSlices(value, rows), name=name)
        return self._v.assign(value, name=name, read_value=read_value)

    def _change(
        self,
        kind: str,
        delta: tf.Tensor | tf.IndexedSlices,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Adds to the value, or subtracts, under the variable's lock."""
        self.invalidate_read()
        rows = self._rows_seen()
        if rows is None:
            return getattr(self._v, f"assign_{kind}")(delta, *args, **kwargs)
        slices = tf.IndexedSlices(tf.convert_to_tensor(delta, self.dtype), rows)
        return getattr(self, f"scatter_{kind}")(slices)

    assign_add = functools.partialmethod(_change, "add")
    assign_sub = functools.partialmethod(_change, "sub")

    def _scatter(
        self,
        op: Callable[..., Any],
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = True,
        name: str | None = None,
    ) -> "ParameterServerVariable":
        """Adds to rows of the value, or subtracts, under the variable's lock."""
        # The op that `tf.Variable.scatter_add` uses takes the lock shared: workers
        # that add to one row at the same time lose some of it.
        self.invalidate_read()
        op(
            ref=self.handle,
            indices=tf.expand_dims(sparse_delta.indices, -1),
            updates=tf.cast(sparse_delta.values, self.dtype),
            use_locking=True,
            name=name,
        )
        return self

    scatter_add = functools.partialmethod(_scatter, tf.raw_ops.ResourceScatterNdAdd)
    scatter_sub = functools.partialmethod(_scatter, tf.raw_ops.ResourceScatterNdSub)


def each_row_once(
    look_up: Callable[[tf.Tensor], tf.Tensor], rows: tf.Tensor, row_shape: Any
) -> tf.Tensor:
    """Looks up rows that repeat, with one look-up of each.

    `look_up` is of a vector of rows, each once; `rows` may have any shape.
    """
    rows = tf.convert_to_tensor(rows)
    unique, positions = tf.unique(tf.reshape(rows, [-1]))
    looked_up = look_up(unique)
    shape = tf.concat([tf.shape(rows), tf.shape(looked_up)[1:]], axis=0)
    result = tf.reshape(tf.gather(looked_up, positions), shape)
    result.set_shape(rows.shape.concatenate(row_shape))
    return result


# The base class passes these methods to the variable on the ps, past the view.
def _invalidating_the_read(method: str) -> Callable[..., Any]:
    def write(self: ParameterServerVariable, *args: object, **kwargs: object) -> Any:
        self.invalidate_read()
        return getattr(self._v, method)(*args, **kwargs)

    write.__name__ = method
    write.__doc__ = f"As `tf.Variable.{method}`, on the ps."
    return write


for _method in (
    "batch_scatter_update",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_max",
    "scatter_nd_min",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_update",
):
    setattr(ParameterServerVariable, _method, _invalidating_the_read(_method))
