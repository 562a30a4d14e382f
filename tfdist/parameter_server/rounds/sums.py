"""The gradients of a round: added up on the ps, next to the variables, and taken as averages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from tfdist import _tf
from tfdist.parameter_server.rounds.computation import Contribution
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.resources import Resource
from tfdist.variables.shard_changes import sum_duplicate_rows

# TensorFlow's accumulators have kernels for these only.
_SUMMED = (tf.float32, tf.float64)


class RoundAccumulator(Protocol):
    """Adds gradients up, and gives the sum once there are enough."""

    device: str

    def add(self, gradient: Any, step: tf.Tensor) -> None:
        """Adds a gradient, or drops it: see `Turnstile.admit`."""

    def take(self, count: tf.Tensor) -> Any:
        """Waits for `count` gradients, and returns their sum. Begins the next one."""


@dataclass(eq=False)
class DenseAccumulator:
    """Sums tensors in place. Memory on the ps: one tensor of that shape."""

    shape: tf.TensorShape
    dtype: tf.DType
    device: str

    def __post_init__(self) -> None:
        self._sum_dtype = self.dtype if self.dtype in _SUMMED else tf.float32
        self._sum = Resource(
            "ResourceConditionalAccumulator",
            self.device,
            dtype=self._sum_dtype,
            shape=self.shape,
            reduction_type="SUM",
        )

    def add(self, gradient: tf.Tensor, step: tf.Tensor) -> None:
        """Adds a gradient, or drops it."""
        with tf.device(self.device):
            tf.raw_ops.ResourceAccumulatorApplyGradient(
                handle=self._sum.handle,
                local_step=step,
                gradient=tf.cast(gradient, self._sum_dtype),
            )

    def take(self, count: tf.Tensor) -> tf.Tensor:
        """Waits for `count` gradients, and returns their sum, as a float."""
        with tf.device(self.device):
            taken = tf.raw_ops.ResourceAccumulatorTakeGradient(
                handle=self._sum.handle, num_required=count, dtype=self._sum_dtype
            )
        taken.set_shape(self.shape)
        return taken


class RowAccumulator:
    """Keeps gradients of rows until they are taken.

    Memory on the ps: the rows of all gradients of a round.
    """

    def __init__(
        self,
        row_shape: tf.TensorShape,
        dtype: tf.DType,
        index_dtype: tf.DType,
        device: str,
    ) -> None:
        self.device = device
        self._types = [index_dtype, dtype, tf.int32]
        self._shapes = [tf.TensorShape([None]), [None, *row_shape], tf.TensorShape([])]
        # Gradients have different numbers of rows, which a queue of batches pads.
        self._kept = Resource(
            "PaddingFIFOQueueV2",
            device,
            component_types=self._types,
            shapes=[tf.TensorShape(each) for each in self._shapes],
            capacity=-1,
        )
        self._row_shape = row_shape

    def add(self, gradient: tf.IndexedSlices, step: tf.Tensor) -> None:
        """Adds a gradient, or drops it."""
        with tf.device(self.device):
            # A dropped one is enqueued as a batch of length 0, without a branch.
            many = tf.cast(step >= 0, tf.int32)
            indices, values = tf.identity(gradient.indices), gradient.values
            # A shard of which the batch has no row would crash the queue.
            padding = [tf.pad(indices, [[0, 1]]), _with_a_row(values)]
            each = [*padding, tf.size(indices)]
            tf.raw_ops.QueueEnqueueManyV2(
                handle=self._kept.handle,
                components=[tf.expand_dims(part, 0)[:many] for part in each],
            )

    def take(self, count: tf.Tensor) -> tf.IndexedSlices:
        """Waits for `count` gradients, and returns the rows of all of them."""
        with tf.device(self.device):
            indices, values, sizes = tf.raw_ops.QueueDequeueManyV2(
                handle=self._kept.handle, n=count, component_types=self._types
            )
            indices.set_shape([None, None])
            values.set_shape([None, None, *self._row_shape])
            sizes.set_shape([None])
            is_row = tf.sequence_mask(sizes, tf.shape(indices)[1])
            return tf.IndexedSlices(
                tf.boolean_mask(values, is_row), tf.boolean_mask(indices, is_row)
            )


def _with_a_row(values: tf.Tensor) -> tf.Tensor:
    return tf.pad(values, [[0, 1], *([[0, 0]] * (values.shape.rank - 1))])


class GradientSums:
    """One accumulator per variable, or per shard of one, next to it."""

    def __init__(self, devices: list[str], contribution: Contribution) -> None:
        self.contribution = contribution
        # Each ps divides by itself, so each has the sum of the weights.
        self._weights = {
            each: DenseAccumulator(tf.TensorShape([]), tf.float32, each)
            for each in devices
        }
        self._accumulators: list[list[RoundAccumulator] | None] = [
            None if gradient is None else _accumulators(gradient, variable)
            for gradient, variable in _pairs(contribution)
        ]

    def add(self, contribution: Contribution, steps: Mapping[str, tf.Tensor]) -> None:
        """Adds gradients, with the steps that each ps has admitted them by."""
        weight = tf.cast(contribution.weight, tf.float32)
        for (gradient, variable), accumulators in zip(
            _pairs(contribution), self._accumulators, strict=True
        ):
            if accumulators is None:
                continue
            parts = _parts(_times(gradient, weight), variable)
            for each, part in zip(accumulators, parts, strict=True):
                each.add(part, steps[each.device])
        for device, accumulator in self._weights.items():
            accumulator.add(weight, steps[device])

    def averages(self, count: tf.Tensor) -> tuple[list[Any], dict[str, tf.Tensor]]:
        """Waits for `count` gradients, and returns the average for each variable.

        With them, for each ps what is there once all sums are, on every ps. An update must not
        begin before: a gradient that still counts on one ps could have been computed from what is
        written on another.
        """
        weights = {d: each.take(count) for d, each in self._weights.items()}
        variables = [variable for _, variable in _pairs(self.contribution)]
        taken = list(weights.values())
        averages: list[Any] = []
        for accumulators, variable in zip(self._accumulators, variables, strict=True):
            if accumulators is None:
                averages.append(None)
                continue
            sums = [each.take(count) for each in accumulators]
            taken += tf.nest.flatten(sums, expand_composites=True)
            averages.append(_average(sums, accumulators, weights, variable))
        complete = {}
        for device, weight in weights.items():
            with tf.device(device), tf.control_dependencies(taken):
                complete[device] = tf.identity(weight, name="complete")
        return averages, complete


def _pairs(contribution: Contribution) -> list[tuple[Any, Any]]:
    holders = [
        _tf.value_of(each) if hasattr(each, "_value") else each
        for each in contribution.variables
    ]
    return list(zip(contribution.gradients, holders, strict=True))


def _times(gradient: Any, weight: tf.Tensor) -> Any:
    # A gradient is a mean over its batch; times its examples, it can be added up.
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(weight, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(weight, gradient.dtype)


def _parts(gradient: Any, variable: Any) -> list[Any]:
    if isinstance(variable, PartitionedVariable):
        return variable.changes.parts_of(gradient)
    return [gradient]


def _accumulators(gradient: Any, variable: Any) -> list[RoundAccumulator]:
    shards = _shards(variable)
    if isinstance(gradient, tf.IndexedSlices):
        dtype, index_dtype = gradient.values.dtype, gradient.indices.dtype
        return [
            RowAccumulator(each.shape[1:], dtype, index_dtype, each.device)
            for each in shards
        ]
    return [
        DenseAccumulator(each.shape, gradient.dtype, each.device) for each in shards
    ]


def _shards(variable: Any) -> Sequence[Any]:
    is_whole = not isinstance(variable, PartitionedVariable)
    return [variable] if is_whole else variable.shards


def _average(
    parts: list[Any],
    accumulators: list[RoundAccumulator],
    weights: Mapping[str, tf.Tensor],
    variable: Any,
) -> Any:
    averages = []
    for part, accumulator, shard in zip(
        parts, accumulators, _shards(variable), strict=True
    ):
        with tf.device(accumulator.device):
            weight = weights[accumulator.device]
            averages.append(_divided(part, weight, shard))
    if not isinstance(variable, PartitionedVariable):
        return averages[0]
    if isinstance(averages[0], tf.IndexedSlices):
        return variable.changes.slices(averages)
    with tf.device(variable.shards[0].device):
        return variable.changes.joined(averages)


def _divided(total: Any, weight: tf.Tensor, variable: Any) -> Any:
    if isinstance(total, tf.IndexedSlices):
        # Each row once, as in the gradient of one batch: what clips looks at elements.
        total = sum_duplicate_rows(total)
        values = total.values / tf.cast(weight, total.dtype)
        shape = tf.constant(variable.shape.as_list(), tf.int64)
        return tf.IndexedSlices(tf.cast(values, variable.dtype), total.indices, shape)
    return tf.cast(total / tf.cast(weight, total.dtype), variable.dtype)
