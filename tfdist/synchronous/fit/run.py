"""Functions that run a step, or several, on every replica's rows of a batch.

TensorFlow's collectives keep one number for all steps of a loop, and refuse a second shape
under the same number. So steps are in a loop only if what they exchange has a fixed shape,
as the gradients of dense weights have. Others, such as those of an embedding, have as many
rows as the batch, and the last batch is often smaller.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist._support.types import Logs, Nest
from tfdist.keras.batch_structure import BatchStructure
from tfdist.peers.input import Totals
from tfdist.peers.shares import int64, row_count, slice_rows
from tfdist.synchronous.reader.reduction import Reduction
from tfdist.synchronous.replica.computation import tracing
from tfdist.synchronous.replica.step import ReplicaStep

Reductions = tuple[Reduction, ...] | None
"""The kinds that a rehearsal found, or None where the step's own trace tells them."""

_as_written = tf.autograph.experimental.do_not_convert


@dataclass(eq=False)
class ShareFunction:
    """Runs a step on each replica's next share, unless the data has ended.

    Args:
        strategy: The `SynchronousStrategy`.
        structure: The structure of the batches.
        totals: As in `ShardedIterator`.
        run: A replica's step.
        kinds: The kinds of what the step computes, if it runs eagerly.

    Attributes:
        shapes: As in `ReplicaStep`, of the steps that were traced.
    """

    strategy: Any
    structure: BatchStructure
    totals: Totals
    run: Callable[[ReplicaStep, Any], Any]
    kinds: Reductions = None

    def __post_init__(self) -> None:
        self.shapes: list[bool] = []

    @_as_written
    def __call__(self, values: Nest, otherwise: Nest = None) -> tuple[tf.Tensor, Nest]:
        """Returns True if there was data, and the step's result on each replica.

        Args:
            values: The iterator over the shares.
            otherwise: The result if there was no data. Zeros by default.
        """
        count, total, present = values.get_next()
        # All replicas decide from one total whether to run, or some would wait in the
        # step's collectives for others that have skipped it.
        last = None
        if self.totals.are_known:
            total = self.strategy.experimental_local_results(total)[0]
        else:
            total, last = self._summed(count)
        run = functools.partial(self._on_replicas, count, total, present, last)
        if self.totals.of_each is not None:
            return tf.constant(True), run()
        if tf.executing_eagerly():
            ran = bool(total > 0)
            return ran, run() if ran else otherwise
        outputs: Nest = None

        def step() -> list[tf.Tensor]:
            nonlocal outputs
            outputs = run()
            return tf.nest.flatten(outputs, expand_composites=True)

        # TensorFlow traces the true branch first, so `outputs` is set.
        def pass_by() -> list[tf.Tensor]:
            flat = tf.nest.flatten(outputs, expand_composites=True)
            if otherwise is not None:
                return tf.nest.flatten(otherwise, expand_composites=True)
            return [tf.zeros([n or 0 for n in t.shape], t.dtype) for t in flat]

        ran = total > 0
        flat = tf.cond(ran, _as_written(step), _as_written(pass_by))
        flat = [flat] if isinstance(flat, tf.Tensor) else flat
        return ran, tf.nest.pack_sequence_as(outputs, flat, expand_composites=True)

    def _summed(self, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the number of all examples, and the last replica that has some."""
        if self.strategy.num_replicas_in_sync == 1:
            return self.strategy.experimental_local_results(count)[0], int64(0)

        @_as_written
        def in_place(count: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            replica, replicas = (
                context.replica_id_in_sync_group,
                context.num_replicas_in_sync,
            )
            return tf.one_hot(replica, replicas, dtype=tf.int64) * count

        counts = self.strategy.reduce(
            tf.distribute.ReduceOp.SUM,
            self.strategy.run(in_place, args=(count,)),
            axis=None,
        )
        return tf.reduce_sum(counts), tf.reduce_max(tf.where(counts > 0))

    @_as_written
    def _on_replicas(
        self, count: tf.Tensor, total: tf.Tensor, present: Nest, last: tf.Tensor | None
    ) -> Nest:
        @_as_written
        def on_replica(count: tf.Tensor, present: Nest) -> Nest:
            this = _this_step(
                self.structure, count, total, self.kinds, self.totals.has_rows
            )
            this.shapes, this.spokesman = self.shapes, last
            with tracing(this):
                return self.run(this, self.structure.pack(present))

        return self.strategy.run(on_replica, args=(count, present))


def on_batch(
    strategy: tf.distribute.Strategy,
    structure: BatchStructure,
    present: tuple[Nest, ...],
    run: Callable[[ReplicaStep, Nest], Nest],
    kinds: Reductions = None,
) -> Nest:
    """Runs a step on a batch that every worker has in full."""

    @_as_written
    def on_replica(present: Nest) -> Nest:
        total = row_count(present[0])
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        replicas = context.num_replicas_in_sync
        count, total, rows = slice_rows(present, total, replicas, replica)
        this = _this_step(structure, count, total, kinds)
        with tracing(this):
            return run(this, structure.pack(rows))

    return strategy.run(on_replica, args=(present,))


def _this_step(
    structure: BatchStructure,
    count: tf.Tensor,
    total: tf.Tensor,
    kinds: Reductions,
    has_rows: bool = False,
) -> ReplicaStep:
    context = tf.distribute.get_replica_context()
    return ReplicaStep(
        tf.cast(context.replica_id_in_sync_group, tf.int64),
        count,
        total,
        structure.has_varying_rows,
        has_rows or context.num_replicas_in_sync == 1,
        kinds,
        whole_batch=context.strategy.whole_batch,
        is_mean=context.strategy.replica_loss == "mean",
    )


class VaryingShapesError(Exception):
    """The steps of a loop exchange tensors whose shapes may differ between the steps."""


class _UnexpectedLogsError(Exception):
    """A step returns logs that the traced loop has no place for."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs


def repeated(
    attempt: ShareFunction, values: Nest, steps: tf.Tensor | int
) -> tuple[tf.Tensor, Nest]:
    """Runs steps on the next shares until the data ends.

    Returns:
        How many steps had data, and the results of the last one.

    Raises:
        VaryingShapesError: If the steps have to be called one by one.
    """
    if tf.executing_eagerly():
        return _one_by_one(attempt, values, int(steps))
    # A loop needs the structure of a step's results before it traces the step. Most steps
    # return nothing but metrics, so that is tried first. A step before the loop would
    # tell, but every step would be traced, and prepared by each worker, twice.
    try:
        return _loop(attempt, values, steps, {})
    except _UnexpectedLogsError as error:
        flat = tf.nest.flatten(error.logs, expand_composites=True)
        zeros = [tf.zeros(each.shape, each.dtype) for each in flat]
        first = tf.nest.pack_sequence_as(error.logs, zeros, expand_composites=True)
        return _loop(attempt, values, steps, first)


def _loop(
    attempt: ShareFunction, values: Nest, steps: tf.Tensor | int, outputs: Nest
) -> tuple[tf.Tensor, Nest]:
    def proceed(step: tf.Tensor, goes_on: tf.Tensor, _: Nest) -> tf.Tensor:
        return (step < steps) & goes_on

    def run(step: tf.Tensor, _: Nest, before: Nest) -> tuple[Nest, ...]:
        goes_on, logs = attempt(values, before or None)
        if logs and not before:
            raise _UnexpectedLogsError(logs)
        return step + tf.cast(goes_on, tf.int32), goes_on, logs

    start = tf.constant(0), tf.constant(True), outputs
    ran, _, outputs = tf.while_loop(proceed, _as_written(run), start)
    if not all(attempt.shapes):
        # Here, where no code of the user's can catch it.
        raise VaryingShapesError
    return ran, outputs


def _one_by_one(attempt: ShareFunction, values: Nest, steps: int) -> tuple[Nest, Nest]:
    ran, outputs = 0, None
    for _ in range(steps):
        goes_on, outputs = attempt(values, outputs)
        if not goes_on:
            break
        ran += 1
    return ran, outputs
