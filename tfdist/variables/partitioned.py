"""One variable whose shards live on several ps.

To Keras it is one variable: it is read as one tensor, saved under one name, and an
optimizer gives it slots of its shape. To TensorFlow, each shard is a variable: a tape, a
loop or a `tf.function` captures the handles of shards, and gradients flow to these; see
`keras_variable`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdist.placement.partition import Partition
from tfdist.variables import narrowing
from tfdist.variables.increment import increment
from tfdist.variables.reserved_rows import refusal_of
from tfdist.variables.saveable import saveables
from tfdist.variables.shard_changes import ShardChanges
from tfdist.variables.shard_layout import ShardLayout
from tfdist.variables.variable import ParameterServerVariable, each_row_once


class PartitionedVariable:
    """A variable split along one axis into shards.

    Cost: a dense read moves every shard to the reader, once in a step; a look-up the
    rows that it names, each once; an update runs next to each shard, on its part of the
    gradient. So a step moves as many bytes as without the split, from several ps at
    the same time.

    Attributes:
        updated_whole: Whether its optimizer looks at more than one element at a time, so
            that an update reads and writes all shards, on the first one's ps.
        lost: The memory of each worker's last rounding error, or None.
        growth: The table whose rows it has, if they are created one by one, or None.
        changes: Splits and joins changes of it.
    """

    def __init__(
        self,
        shards: Sequence[ParameterServerVariable],
        layout: ShardLayout,
        name: str,
        trainable: bool,
        num_workers: int,
    ) -> None:
        self._shards = tuple(shards)
        self.layout = layout
        self.name = name
        self.trainable = trainable
        self._num_workers = num_workers
        self.updated_whole = False
        self.lost: Any = None
        self.growth: Any = None
        shapes = [shard.shape for shard in self._shards]
        self.changes = ShardChanges(layout, shapes, self.dtype)
        self._shape = self.changes.shape
        self._view: tf.Tensor | None = None

    def __repr__(self) -> str:
        return (
            f"<PartitionedVariable {self.name!r} shape={self._shape} "
            f"dtype={self.dtype.name} shards={self.partition.sizes} "
            f"ps={self.partition.ps}>"
        )

    @property
    def partition(self) -> Partition:
        """The sizes and the ps of the shards."""
        return self.layout.partition

    @property
    def shards(self) -> tuple[ParameterServerVariable, ...]:
        """The variables on the ps, one per shard."""
        return self._shards

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the whole, or of the shard that an update is narrowed to."""
        seen = self._seen()
        return self._shape if seen is None else seen.shape

    @property
    def dtype(self) -> tf.DType:
        """The dtype of its elements."""
        return self._shards[0].dtype

    @property
    def aggregation(self) -> tf.VariableAggregation:
        """The aggregation of replicas' writes, as for `tf.Variable`."""
        return self._shards[0].aggregation

    @property
    def device(self) -> str:
        """The device of its first shard."""
        return self._shards[0].device

    @property
    def handle(self) -> tf.Tensor:
        """The handle of a variable in one piece, which this is not."""
        # An AttributeError, so that there is none for those that look first.
        raise AttributeError(
            f"{self.name} is in shards on {len(self._shards)} ps, and has no handle: take "
            "gradients by tf.GradientTape, or build its layer within "
            "tfdist.partition_variables(tfdist.FixedShardsPartitioner(1))"
        )

    @property
    def updates_rows(self) -> bool:
        """True if an optimizer updates only the rows that a step has looked up."""
        return all(shard.updates_rows for shard in self._shards)

    @updates_rows.setter
    def updates_rows(self, value: bool) -> None:
        for shard in self._shards:
            shard.updates_rows = value

    # The next three are read by name: the strategy's by `tf.distribute`, the id by
    # Keras's optimizers, the shared name by Keras's variables.
    @property
    def _distribute_strategy(self) -> tf.distribute.Strategy:
        return self._shards[0]._distribute_strategy

    @property
    def _unique_id(self) -> str:
        return self._shards[0]._unique_id

    @property
    def _shared_name(self) -> str:
        return self.name

    def _seen(self) -> ParameterServerVariable | None:
        index = narrowing.shard_seen()
        return None if index is None else self._shards[index]

    def invalidate_read(self) -> None:
        """Makes the next read ask the ps: this step has written what it sees of it."""
        self._view = None
        if (seen := self._seen()) is not None:
            seen.invalidate_read()

    def read_value(self) -> tf.Tensor:
        """Reads the whole, or the shard that an update is narrowed to."""
        if (seen := self._seen()) is not None:
            return seen.read_value()
        view = self._read()
        self._view = None if tf.executing_eagerly() else view
        return view

    def value(self) -> tf.Tensor:
        """Reads the value, as `read_value` does."""
        return self.read_value()

    def _read(self) -> tf.Tensor:
        self._check_is_not_reserved()

        def join(*values: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
            return self.layout.join(values), self.changes.split_gradient

        values = [shard.read_value() for shard in self._shards]
        # So `join_gradients` gives the gradient of the whole back as it is.
        return tf.custom_gradient(join)(*values) if self.trainable else join(*values)[0]

    def sparse_read(self, rows: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Looks up rows; `tf.gather` calls this method of TensorFlow's variables."""
        return self.look_up(rows)

    def look_up(self, rows: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Looks up rows. Each of them travels once, and so does its gradient.

        Rows are indices of any shape, S; the result has the shape S + shape[1:].
        """
        if (seen := self._seen()) is not None:
            return seen.sparse_read(rows)
        if self.partition.axis:
            return tf.gather(self.read_value(), rows)
        return each_row_once(self._look_up, rows, self._shape[1:])

    def _look_up(self, unique: tf.Tensor) -> tf.Tensor:
        owners, local = self.changes.locate(unique)
        count = len(self._shards)
        rows = tf.dynamic_partition(local, owners, count)

        order = tf.dynamic_partition(tf.range(tf.size(unique)), owners, count)
        found = [
            shard.sparse_read(part)
            for shard, part in zip(self._shards, rows, strict=True)
        ]
        return tf.dynamic_stitch(order, found)

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> None:
        """Sets the value, or adds the change since this step read it."""
        if (seen := self._seen()) is not None:
            seen.assign(value, *args, **kwargs)
            return
        self._check_is_not_reserved()
        value = tf.convert_to_tensor(value, dtype=self.dtype)
        added = self._increment(value)
        self._view = None
        if added is not None:
            self.assign_add(added)
            return
        for shard, part in zip(self._shards, self.layout.split(value), strict=True):
            shard.assign(part)

    def _increment(self, value: tf.Tensor) -> tf.Tensor | None:
        view = self._view
        if view is None or tf.executing_eagerly():
            return None
        if view.graph is not tf.compat.v1.get_default_graph():
            return None
        return increment(value, view, self.trainable, self._num_workers)

    def assign_add(
        self, delta: tf.Tensor | tf.IndexedSlices, *args: object, **kwargs: object
    ) -> None:
        """Adds to the value, under the lock of each shard."""
        self._each_with_part_of(delta, "assign_add")

    def assign_sub(
        self, delta: tf.Tensor | tf.IndexedSlices, *args: object, **kwargs: object
    ) -> None:
        """Subtracts from the value, under the lock of each shard."""
        self._each_with_part_of(delta, "assign_sub")

    def scatter_add(self, delta: tf.IndexedSlices, **kwargs: object) -> None:
        """Adds to rows of the value, under the lock of each shard."""
        self._each_with_part_of(delta, "scatter_add")

    def scatter_sub(self, delta: tf.IndexedSlices, **kwargs: object) -> None:
        """Subtracts from rows of the value, under the lock of each shard."""
        self._each_with_part_of(delta, "scatter_sub")

    def scatter_update(self, delta: tf.IndexedSlices, **kwargs: object) -> None:
        """Sets rows of the value."""
        self._each_with_part_of(delta, "scatter_update")

    def _each_with_part_of(
        self, delta: tf.Tensor | tf.IndexedSlices, method: str
    ) -> None:
        self._view = None
        if (seen := self._seen()) is not None:
            getattr(seen, method)(delta)
            return
        if not isinstance(delta, tf.IndexedSlices):
            # A scalar, as in `assign_add(1)`, cannot be split by shard.
            delta = tf.broadcast_to(
                tf.convert_to_tensor(delta, self.dtype), self._shape
            )
        for shard, part in zip(self._shards, self.changes.parts_of(delta), strict=True):
            getattr(shard, method)(part)

    def numpy(self) -> np.ndarray:
        """Returns the value of the whole; of a growing table's slot the rows of its ids."""
        if self.growth is not None and self.growth.has_slot(self):
            rows: np.ndarray = self.growth.rows_of_slot(self)
            return rows
        self._check_is_not_reserved()
        parts = [shard.numpy() for shard in self._shards]
        return self.layout.join_arrays(parts)

    def _check_is_not_reserved(self) -> None:
        # A dense read would take the memory of all rows that are only reserved.
        if self.growth is not None:
            raise refusal_of(self.name)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        return np.asarray(self.numpy(), dtype=dtype)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        value = self.read_value()
        if dtype is not None and tf.as_dtype(dtype) != value.dtype:
            raise ValueError(f"{self.name} is of {value.dtype.name}, not {dtype}")
        return value

    def factories(self) -> dict[str, Callable[[str], list[Any]]]:
        """Returns what saves each shard as a slice of one tensor, and restores it.

        The rows of a table that grows are saved by their ids instead.

        A checkpoint of it has one tensor of the whole's shape, as that of a variable
        in one piece, and each is restored into any slices of the other.
        """
        if self.growth is not None:
            of_rows: dict[str, Callable[[str], list[Any]]] = self.growth.factories(self)
            return of_rows
        shape = self._shape.as_list()
        return {
            "VARIABLE_VALUE": lambda name: saveables(
                self._shards, self.layout, shape, name
            )
        }


def _operator(name: str) -> Callable[..., tf.Tensor]:
    def operate(self: PartitionedVariable, *others: Any) -> tf.Tensor:
        return getattr(self.read_value(), name)(*others)

    operate.__name__ = name
    return operate


# Python looks operators up on the class, so `__getattr__` could not pass them on.
_OPERATORS = (
    "abs add floordiv ge getitem gt le lt matmul mod mul neg pow radd rmatmul "
    "rmul rpow rsub rtruediv sub truediv"
)
for _name in _OPERATORS.split():
    setattr(PartitionedVariable, f"__{_name}__", _operator(f"__{_name}__"))
