"""Changes of variables, such as gradients: split by shard, joined, each row once."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.variables.shard_layout import ShardLayout, locate

_PARTS, _WHOLE = "parts_of_shards", "whole_of_parts"


class PartitionedSlices(tf.IndexedSlices):
    """A gradient of rows that also knows which of them each shard holds.

    TensorFlow sees the slices of the whole variable. `shards` holds the slices of each
    shard, with rows counted within the shard: where only these are used, a graph never
    computes the others.
    """

    def __init__(
        self,
        shards: Sequence[tf.IndexedSlices],
        layout: ShardLayout,
        dense_shape: Sequence[int],
    ) -> None:
        axis = layout.partition.axis
        rows = [layout.indices(i, slices.indices) for i, slices in enumerate(shards)]
        super().__init__(
            values=tf.concat([slices.values for slices in shards], axis),
            # In shards of columns, each has the same rows.
            indices=shards[0].indices if axis else tf.concat(rows, axis=0),
            dense_shape=tf.constant(dense_shape, tf.int64),
        )
        self.shards = tuple(shards)


class ShardChanges:
    """Splits changes of one variable by shard, and joins those of its shards.

    What was split or joined here is given back as it was: so a change that nothing looks
    at as a whole does not travel to be joined.
    """

    def __init__(
        self, layout: ShardLayout, shapes: Sequence[tf.TensorShape], dtype: tf.DType
    ) -> None:
        self._layout = layout
        self._shapes = [shape.as_list() for shape in shapes]
        self._dtype = dtype
        whole = list(self._shapes[0])
        whole[layout.partition.axis] = sum(layout.partition.sizes)
        self.shape = tf.TensorShape(whole)

    def locate(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the shard of each row, and its row there."""
        owners, local = locate(
            rows, self._layout.partition.sizes, self._layout.partition_strategy
        )
        # `tf.dynamic_partition` takes the owners of rows as int32 only.
        return tf.cast(owners, tf.int32), local

    def parts_of(self, delta: tf.Tensor | tf.IndexedSlices) -> list[Any]:
        """Splits a gradient, or another change of the whole, by shard.

        It has the whole's shape, or is `tf.IndexedSlices`, whose parts count rows
        within their shard.
        """
        if isinstance(delta, PartitionedSlices):
            return list(delta.shards)
        owner, parts = getattr(delta, _PARTS, (None, ()))
        # The parts of another variable's change may have other shards.
        if owner is self:
            return list(parts)
        if not isinstance(delta, tf.IndexedSlices):
            return self._layout.split(tf.convert_to_tensor(delta))
        partition = self._layout.partition
        if partition.axis:
            values = tf.split(delta.values, partition.sizes, partition.axis)
            return [tf.IndexedSlices(each, delta.indices) for each in values]
        owners, local = self.locate(delta.indices)
        count = len(self._shapes)
        rows = tf.dynamic_partition(local, owners, count)
        values = tf.dynamic_partition(delta.values, owners, count)
        return [
            tf.IndexedSlices(value, row, tf.constant(shape, tf.int64))
            for value, row, shape in zip(values, rows, self._shapes, strict=True)
        ]

    def parts_or_copies(self, argument: Nest) -> list[Any]:
        """Splits a gradient into one part per shard; repeats any other argument."""
        if isinstance(argument, tf.IndexedSlices):
            return self.parts_of(argument)
        # TensorFlow may not know the shape of a gradient, nor even its rank.
        if tf.is_tensor(argument) and argument.shape.is_compatible_with(self.shape):
            if isinstance(argument, tf.Tensor):
                argument.set_shape(self.shape)
            return self.parts_of(argument)
        return [argument] * len(self._shapes)

    def split_gradient(self, whole: Any) -> list[Any]:
        """Splits a gradient so that `join_gradients` gives it back."""
        parts = self.parts_of(whole)
        for part in parts:
            setattr(part, _WHOLE, whole)
        return parts

    def join_gradients(self, parts: Sequence[Any]) -> Any:
        """Joins the gradients by the shards; None if there are none."""
        if all(part is None for part in parts):
            return None
        whole = getattr(parts[0], _WHOLE, None)
        if whole is not None and all(
            getattr(part, _WHOLE, None) is whole for part in parts
        ):
            return whole
        if all(isinstance(part, tf.IndexedSlices) for part in parts):
            return self.slices(parts)
        return self.joined(
            [
                tf.zeros(shape, self._dtype)
                if part is None
                else tf.convert_to_tensor(part)
                for shape, part in zip(self._shapes, parts, strict=True)
            ]
        )

    def slices(self, shards: Sequence[tf.IndexedSlices]) -> PartitionedSlices:
        """Returns a gradient of rows, from those of each shard."""
        return PartitionedSlices(shards, self._layout, self.shape.as_list())

    def joined(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Joins a change of each shard, and lets `parts_of` give these back."""
        whole = self._layout.join(parts)
        setattr(whole, _PARTS, (self, tuple(parts)))
        return whole


def sum_duplicate_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the values of each row, so that every row occurs once in the gradient.

    Optimizers square gradients, and the sum of squares is not the square of the sum.
    """
    # Sum where the gradient was computed: on a worker, this saves sending duplicates.
    with tf.device(gradient.values.device):
        rows, positions = tf.unique(gradient.indices)
        summed = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
    return tf.IndexedSlices(summed, rows, gradient.dense_shape)
