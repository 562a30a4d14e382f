"""The rows of all replicas on each of them: the whole batch."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.keras.computation import current_computation
from tfdist.synchronous.reader.indivisible import IndivisibleLossError
from tfdist.synchronous.reader.reduction import INDIVISIBLE, Reduction
from tfdist.synchronous.replica.collectives import sum_tensors, sums_after
from tfdist.synchronous.replica.step import ReplicaStep

_REFUSED = "tfdist cannot gather the whole batch: "
_END = " (end)"

# Replicas exchange texts as numbers of a fixed length.
# 0 stands for no byte, behind the end of a text; another code is a byte plus one.
_BYTES = [b"", *(bytes([byte]) for byte in range(256))]


@tf.autograph.experimental.do_not_convert
def whole_batch(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the rows of the whole batch, for functions that do not separate.

    For a `train_step` or `test_step` of one's own, and for layers. Under synchronous
    strategies, each replica computes from its part of the batch, and a function such as
    an in-batch softmax needs all of it:

        z = tfdist.whole_batch(self.encoder(x))
        loss = contrastive_loss(z)  # of all examples, equal on every replica

    A value computed from the result alone is equal on every replica, counts once, and
    may be any function. Gradients flow back into each replica's own rows. Where a step
    has the whole batch already, in one process and under other strategies, the result
    is the tensor itself.

    Cost: about twice the bytes of all rows over every worker's link, and as much again
    for their gradient.

    Args:
        tensor: This replica's rows: its first axis is that of the examples. The rows of
            all replicas follow each other in the order of the batch, so gather tensors of
            several rows per example, such as two views, one by one.

    Raises:
        IndivisibleLossError: If the first axis is not that of the examples, or rows were
            combined or selected before. Above `whole_batch_bytes` of the strategy, the
            step raises it.
        RuntimeError: If this is a step outside of `fit` and its like, which several
            replicas run.
    """
    step = getattr(current_computation(), "step", None)
    if isinstance(step, ReplicaStep):
        return gathered(step, [tensor])[0]
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        raise RuntimeError(
            "tfdist.whole_batch was called in a step outside of fit, evaluate and "
            "train_on_batch, where tfdist does not know the replica's rows. Use "
            "tf.distribute.get_replica_context().all_gather(tensor, axis=0)"
        )
    return tf.convert_to_tensor(tensor)


def gathered(
    step: ReplicaStep, values: Sequence[Nest], one_per_example: bool = False
) -> list[tf.Tensor]:
    """Returns the rows of all replicas of each tensor, in the order of the batch.

    They are marked as equal on all replicas. So is what is computed from them.

    Cost: one message of the numbers of rows, and one per dtype of the rows; one more for
    each tensor that is differentiated.

    Args:
        step: The replica's step.
        values: The tensors.
        one_per_example: Whether the step is to fail unless each example has one row.
            Where it has several, the order of the batch is not known.

    Raises:
        IndivisibleLossError: If a tensor does not have the axis of the examples.
    """
    tensors = [_checked(each) for each in values]
    kinds = [step.kind_of(each) for each in tensors]
    for tensor, kind in zip(tensors, kinds, strict=True):
        _check_kind(step, tensor, kind)
    have_rows = [kind is not Reduction.SAME for kind in kinds]
    rows = [t for t, has in zip(tensors, have_rows, strict=True) if has]
    # A gradient could not flow out of a branch or a loop.
    step.check_not_within(
        "tfdist.whole_batch was called", "Call it before, in the step itself"
    )
    if rows and not step.is_rehearsal:
        step.check_can_exchange()
        everyone = iter(AllRows(step, rows).gathered(one_per_example))
    else:
        # A rehearsal traces one replica: nobody else has rows.
        everyone = iter([tf.identity(each) for each in rows])
    found = [
        next(everyone) if has else tensor
        for tensor, has in zip(tensors, have_rows, strict=True)
    ]
    step.is_same(found)
    return found


def _checked(value: Nest) -> tf.Tensor:
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        raise IndivisibleLossError(
            f"{_REFUSED}it holds a {type(value).__name__}. Convert it to a tensor first: "
            "to_tensor(), or tf.sparse.to_dense"
        )
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype == tf.string:
        raise IndivisibleLossError(
            f"{_REFUSED}it holds texts. Convert them to numbers first"
        )
    return tensor


def _check_kind(step: ReplicaStep, tensor: tf.Tensor, kind: Reduction) -> None:
    if step.is_mean and kind in INDIVISIBLE and tensor.shape.rank:
        return
    if kind in INDIVISIBLE and step.known_kinds is None:
        raise step.reader.error_of(tensor)
    if kind not in (Reduction.ROWS, Reduction.SAME):
        raise IndivisibleLossError(
            f"{_REFUSED}a tensor of shape {tensor.shape} is computed from the examples "
            "and does not have their axis. Gather what has it: a tensor whose first axis "
            "is that of the batch"
        )


class AllRows:
    """The rows of all replicas of some tensors.

    Cost: to construct it, one message of the numbers of rows.

    Args:
        step: The replica's step.
        values: Its tensors. Their rows do not count if the step has no examples.
    """

    def __init__(self, step: ReplicaStep, values: Sequence[tf.Tensor]) -> None:
        self._step, self._values = step, values
        sizes = tf.stack([tf.shape(each, tf.int64)[0] for each in values])
        # The row of a replica without examples only stands in.
        self._own = tf.where(step.count > 0, sizes, tf.zeros_like(sizes))
        self._texts = [i for i, each in enumerate(values) if each.dtype == tf.string]
        lengths = [_longest_of(values[i]) for i in self._texts]
        context = tf.distribute.get_replica_context()
        here = tf.one_hot(step.replica, context.num_replicas_in_sync, dtype=tf.int64)
        numbers = tf.concat([self._own, tf.cast(lengths, tf.int64)], 0)
        (table,) = sum_tensors([here[:, None] * numbers])
        rows = table[:, : len(values)]
        self._begin = tf.reduce_sum(rows[: step.replica], 0)
        self._total = tf.reduce_sum(rows, 0)
        self._longest = tf.reduce_max(table[:, len(values) :], 0)

    def concatenated(self) -> list[tf.Tensor]:
        """Returns the rows, without a way back for gradients."""
        # Each replica has zeros where the others' rows belong, so that the sum is the
        # concatenation. TensorFlow's own gather does not guarantee the order of the
        # replicas when a worker has several devices.
        values = [tf.stop_gradient(value) for value in self._values]
        for i, longest in zip(self._texts, tf.unstack(self._longest), strict=True):
            values[i] = _to_codes(values[i], longest)
        placed = [
            _padded(
                value[: self._own[i]],
                self._begin[i],
                self._total[i] - self._begin[i] - self._own[i],
            )
            for i, value in enumerate(values)
        ]
        found = sum_tensors(placed)
        for i in self._texts:
            found[i] = _from_codes(found[i])
        for whole, value in zip(found, self._values, strict=True):
            whole.set_shape([None, *value.shape[1:]])
        self._step.is_same(found)
        return found

    def gathered(self, one_per_example: bool) -> list[tf.Tensor]:
        """Returns the rows. Gradients flow back into each replica's own.

        The strategy's limit is checked before anything large is sent.
        """
        self._total += self._check_size()
        if one_per_example:
            self._total += self._check_rows()
        found = self.concatenated()
        places = [i for i, each in enumerate(found) if each.dtype.is_floating]
        if not places:
            return found

        @tf.custom_gradient
        def gather(
            token: tf.Tensor, *values: tf.Tensor
        ) -> tuple[list[tf.Tensor], Callable[..., Any]]:
            def scatter(token: tf.Tensor, *upstream: tf.Tensor) -> list[tf.Tensor]:
                parts = [tf.convert_to_tensor(each) for each in upstream]
                if self._step.differentiates_same:
                    # Every replica has the same, weighted by its share.
                    sums = [self._step.unscaled(each) for each in parts]
                else:
                    token, *sums = sums_after(token, *parts)
                    self._step.is_same(sums)
                own = [
                    self._own_rows(i, each)
                    for i, each in zip(places, sums, strict=True)
                ]
                return [token, *own]

            whole = [tf.identity(found[i]) for i in places]
            return [tf.identity(token), *whole], scatter

        token, *whole = gather(self._step.token, *(self._values[i] for i in places))
        self._step.proceed(token)
        for i, each in zip(places, whole, strict=True):
            found[i] = each
        return found

    def _own_rows(self, i: int, rows: tf.Tensor) -> tf.Tensor:
        """Returns this replica's part of all rows, in the shape of its tensor."""
        own = rows[self._begin[i] : self._begin[i] + self._own[i]]
        size = tf.shape(self._values[i], tf.int64)[0]
        own = _padded(own, tf.zeros_like(size), size - self._own[i])
        return tf.ensure_shape(own, self._values[i].shape)

    def _check_size(self) -> tf.Tensor:
        limit = tf.distribute.get_strategy().whole_batch_bytes
        per_row = [
            tf.reduce_prod(tf.shape(each, tf.int64)[1:]) * each.dtype.size
            for each in self._values
        ]
        size = tf.reduce_sum(self._total * tf.stack(per_row))
        message = tf.strings.format(
            f"{_REFUSED}it is {{}} bytes, and whole_batch_bytes={limit}. A loss or metric "
            "that does not separate over examples needs it on every replica. Use smaller "
            "batches or outputs, allow more by whole_batch_bytes=..., or let each replica "
            "compute on its own part of the batch by whole_batch=False, both of the "
            f"strategy{_END}",
            size,
        )
        return _zero_if(size <= limit, message)

    def _check_rows(self) -> tf.Tensor:
        message = tf.strings.format(
            f"{_REFUSED}targets, predictions and weights have {{}} rows for {{}} "
            "examples, and a loss or metric that does not separate over examples needs "
            f"their order. Return several outputs, each with a row per example{_END}",
            (self._total, self._step.total),
        )
        is_one = tf.reduce_all(self._total == self._step.total)
        return _zero_if(is_one, message)


def _zero_if(is_right: tf.Tensor, message: tf.Tensor) -> tf.Tensor:
    """Returns an integer zero, or fails with a message."""
    # An Assert has effects, so TensorFlow would run those of all replicas of a process in the
    # order of their traces. The second of one replica would come before the first of the
    # next, and wait for rows that this one has yet to send: forever.
    return tf.strings.to_number(tf.where(is_right, "0", message), tf.int64)


def _padded(value: tf.Tensor, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    others = tf.zeros([tf.rank(value) - 1, 2], tf.int64)
    return tf.pad(value, tf.concat([[[before, after]], others], 0))


def refusal_in(error: tf.errors.OpError) -> IndivisibleLossError | None:
    """Returns the error of a step that would have gathered too much, or None."""
    _, found, after = error.message.partition(_REFUSED)
    if not found:
        return None
    return IndivisibleLossError(_REFUSED + after.partition(_END)[0])


def _longest_of(texts: tf.Tensor) -> tf.Tensor:
    """Returns the length of the longest text in bytes, at least 1; an int64 scalar."""
    lengths = tf.reshape(tf.strings.length(texts), [-1])
    return tf.cast(tf.reduce_max(tf.concat([lengths, [1]], 0)), tf.int64)


def _to_codes(texts: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
    """Returns texts with a last axis more, of `longest` int32 codes, one per byte."""
    longest = tf.cast(longest, tf.int32)
    codes = tf.io.decode_raw(texts, tf.uint8, fixed_length=longest)
    is_byte = tf.sequence_mask(tf.strings.length(texts), longest)
    return tf.where(is_byte, tf.cast(codes, tf.int32) + 1, 0)


def _from_codes(codes: tf.Tensor) -> tf.Tensor:
    """Returns the texts of `_to_codes`."""
    return tf.strings.reduce_join(tf.gather(tf.constant(_BYTES), codes), axis=-1)
