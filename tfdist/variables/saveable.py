"""Save the shards of a variable as contiguous slices of one tensor.

A checkpoint of a variable in shards therefore holds one tensor of the whole shape, as for
a variable that is not split, and either can be restored into any number of shards.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.context import setting
from tfdist.variables.shard_layout import DIV, ShardLayout, locate
from tfdist.variables.variable import ParameterServerVariable

_in_a_function: ContextVar[bool] = ContextVar("in_a_function", default=False)


def saved_by_a_function() -> AbstractContextManager[None]:
    """Traces a function that saves variables, as eager code would save them."""
    return setting(_in_a_function, True)


def is_exporting() -> bool:
    """Returns True if a SavedModel is being exported: nothing else saves in a graph."""
    # Our own checkpoints are written by a traced function, too, and say so.
    return not (tf.executing_eagerly() or _in_a_function.get())


def saveables(
    shards: Sequence[ParameterServerVariable],
    layout: ShardLayout,
    shape: Sequence[int],
    name: str,
) -> list[Any]:
    """Returns objects that save and restore the shards, each on its ps."""
    specs = slice_specs(layout, shape)
    # A slice in a checkpoint is contiguous: its format has no strides.
    if layout.partition_strategy != DIV:
        return [_InterleavedSaveable(shards, layout, specs, name)]
    return [
        _ContiguousSaveable(shard, spec, name)
        for spec, shard in zip(specs, shards, strict=True)
    ]


def slice_specs(layout: ShardLayout, shape: Sequence[int]) -> list[str]:
    """Returns contiguous slices in the checkpoint format: `6 4 0,3:0,4`."""
    partition = layout.partition
    specs = []
    for shard in partition.bounds:
        extents = [f"0,{size}" for size in shape]
        extents[partition.axis] = f"{shard.start},{shard.size}"
        specs.append(f"{' '.join(map(str, shape))} {':'.join(extents)}")
    return specs


class _ContiguousSaveable(_tf.SaveableObject):
    """Saves a shard that is one slice of the whole."""

    def __init__(self, shard: ParameterServerVariable, spec: str, name: str) -> None:
        self._shard = shard

        def read() -> tf.Tensor:
            # `read_value` would hold a copy of the shard until the file is written.
            with tf.device(shard.device):
                value = shard.read_value_no_copy()
                # Files are written from host memory. The job and task stay those of the
                # shard, since this names only a part of the device.
                with tf.device("/device:CPU:0"):
                    return tf.identity(value)

        save_spec = _tf.SaveSpec(
            tensor=read,
            slice_spec=spec,
            name=name,
            dtype=shard.dtype,
            device=shard.device,
        )
        super().__init__(shard, [save_spec], name)

    def restore(
        self,
        restored_tensors: Sequence[tf.Tensor],
        restored_shapes: Sequence[tf.TensorShape],
    ) -> Any:
        (restored,) = restored_tensors
        with tf.device(self._shard.device):
            return self._shard.assign(restored, read_value=False)


class _InterleavedSaveable(_tf.SaveableObject):
    """Saves shards whose rows are not contiguous.

    Each ps assembles one contiguous slice from rows of all shards.
    """

    def __init__(
        self,
        shards: Sequence[ParameterServerVariable],
        layout: ShardLayout,
        specs: Sequence[str],
        name: str,
    ) -> None:
        self._shards, self._layout = shards, layout
        super().__init__(
            shards[0],
            [
                _tf.SaveSpec(
                    tensor=self._reads_slice(i),
                    slice_spec=spec,
                    name=name,
                    dtype=shards[0].dtype,
                    device=shards[i].device,
                )
                for i, spec in enumerate(specs)
            ],
            name,
        )

    def _reads_slice(self, index: int) -> Any:
        bound, sizes = (
            self._layout.partition.bounds[index],
            self._layout.partition.sizes,
        )

        def read() -> tf.Tensor:
            with tf.device(self._shards[index].device):
                rows = tf.range(bound.start, bound.stop)
                owners, local = locate(rows, sizes, self._layout.partition_strategy)
                count = len(sizes)
                order = tf.dynamic_partition(tf.range(bound.size), owners, count)
                parts = tf.dynamic_partition(local, owners, count)
            found = []
            for shard, part in zip(self._shards, parts, strict=True):
                with tf.device(shard.device):
                    found.append(shard.sparse_read(part))
            with tf.device(self._shards[index].device):
                return tf.dynamic_stitch(order, found)

        return read

    def restore(
        self,
        restored_tensors: Sequence[tf.Tensor],
        restored_shapes: Sequence[tf.TensorShape],
    ) -> Any:
        count, starts = (
            len(self._shards),
            [b.start for b in self._layout.partition.bounds],
        )
        for i, shard in enumerate(self._shards):
            parts = [
                # A slice starts at any row, so its first row of shard i is not its row
                # i.
                part[(i - start) % count :: count]
                for part, start in zip(restored_tensors, starts, strict=True)
            ]
            with tf.device(shard.device):
                assigned = shard.assign(tf.concat(parts, axis=0), read_value=False)
        return assigned
