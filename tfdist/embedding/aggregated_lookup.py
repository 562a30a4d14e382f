r"""Sparse embedding lookups that sum rows on the parameter servers.

Each shard of the table uses the route that moves fewer bytes for the current ids: it sends
each distinct row once, or it sums its rows of each bag and sends the sums. On both routes,
a shard's rows are gathered and clipped on its device, and their gradient is computed there.
An optimizer that updates the shard on its device moves nothing else. Look a table up once
per step: TensorFlow concatenates the gradients of two lookups on the worker, which moves
them there and back.

For the bag \(b\) with the ids \(i\), of weights \(w_i\) and rows \(r_i\), shard \(s\) sums
\(\sum_{i \in b \cap s} w_i r_i\). The worker adds these up and divides by 1 (`"sum"`),
\(\sum_b w_i\) (`"mean"`) or \(\sqrt{\sum_b w_i^2}\) (`"sqrtn"`).

Source: `tf.contrib.layers.embedding_lookup_sparse_with_distributed_aggregation` of
TensorFlow 1.15.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.embedding import batch, checks, routing
from tfdist.embedding.cost import LookupBytes
from tfdist.embedding.differentiable import sum_of_block, sums_on_shards


class LookupBytesCounter:
    """Counts the bytes that lookups move, without moving any itself.

    Create it in the strategy's scope: each worker then counts in a local variable. It
    counts what the cost model predicts: see `tfdist.embedding.cost`.
    """

    def __init__(self) -> None:
        self._has_counted = False
        on_workers = isinstance(
            tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy
        )
        self._sums = tf.Variable(
            tf.zeros([3], tf.int64),
            trainable=False,
            **{"per_worker_variable": True} if on_workers else {},
        )

    def add(self, moved_plain_aggregated: tf.Tensor) -> None:
        """Adds three int64: the bytes moved, and those of the plain and the aggregated route."""
        self._has_counted = True
        self._sums.assign_add(moved_plain_aggregated)

    def total(self) -> LookupBytes:
        """Returns the sums over all workers."""
        # A worker creates its variable on first use. Before, there is nothing to read.
        if not self._has_counted:
            return LookupBytes(0, 0, 0)
        read = getattr(self._sums, "read_all", lambda: [self._sums])
        sums = sum(tf.convert_to_tensor(each).numpy() for each in read())
        return LookupBytes(*(int(each) for each in sums))


def embedding_lookup_sparse_with_distributed_aggregation(
    params: Any,
    sp_ids: tf.SparseTensor | tf.RaggedTensor,
    sp_weights: tf.SparseTensor | tf.RaggedTensor | None,
    partition_strategy: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    *,
    aggregate: bool | None = None,
    counter: LookupBytesCounter | None = None,
) -> tf.Tensor:
    """Looks up a batch of bags of ids, and combines the rows of each bag.

    The result and its gradients are those of `tf.compat.v1.nn.embedding_lookup_sparse`
    with the same arguments. Each shard sends its rows or sums of them, whichever are fewer
    bytes; see `tfdist.embedding.cost`.

    Args:
        params: The shards of the table, each `[rows, dim]` on its own device, or the only
            one: variables or tensors; or one variable in shards.
        sp_ids: `[batch, any]` of int32 or int64: one bag of ids per row, in order.
        sp_weights: One weight per id, or None for ones.
        partition_strategy: `"mod"` if id `i` is row `i // P` of shard `i % P`, the default
            for a list of shards, as in TensorFlow 1; `"div"` if shards have contiguous
            rows, where the first may have one more. A sharded variable has its own.
        combiner: `"mean"`, `"sqrtn"` or `"sum"`; None is `"mean"`.
        max_norm: Rows with a larger L2 norm are first scaled down to it.
        name: The name scope of the operations.
        aggregate: Whether the shards sum; None to choose by the cost model.
        counter: Counts the bytes of this lookup.

    Returns:
        `[batch, dim]`, with the table's dtype. Rows without ids are zeros, at the end of
        the batch too, where TensorFlow's function drops them.

    Raises:
        TypeError: If `sp_ids`, `sp_weights` or `counter` is of another type.
        ValueError: If an argument is invalid, or the shards do not fit the layout.
        tf.errors.InvalidArgumentError: In the step, if an id is no row, or has no weight.
    """
    combiner = checks.combiner(combiner)
    max_norm = checks.max_norm(max_norm)
    aggregate = checks.aggregate(aggregate)
    _check_counter(counter)
    table = checks.table(params, partition_strategy)
    # A message carries the name of its operation: a long name costs bytes per step.
    with tf.name_scope(name or "lookup_sparse"):
        bag = batch.bag(table, sp_ids, sp_weights)
        return _look_up(table, bag, combiner, max_norm, aggregate, counter)


def _check_counter(counter: Any) -> None:
    if counter is not None and not isinstance(counter, LookupBytesCounter):
        raise TypeError(
            "counter must be None or a tfdist.embedding.LookupBytesCounter(), created in the "
            f"strategy's scope; received {counter!r}"
        )


def _look_up(
    table: checks.Table,
    bag: batch.Bag,
    combiner: str,
    max_norm: float | None,
    aggregate: bool | None,
    counter: LookupBytesCounter | None,
) -> tf.Tensor:
    entries = routing.Entries(bag.ids, bag.segments, bag.weights)
    routed = [
        routing.choose(each, table.dim * table.dtype.size, aggregate)
        for each in routing.split(entries, table.sizes, table.partition_strategy)
    ]
    if counter is not None:
        counter.add(tf.add_n([each.bytes for each in routed]))
    routes = [each.route for each in routed]
    blocks = sums_on_shards(table.params, routes, max_norm)
    return tf.cast(combined(blocks, routes, bag, combiner), table.dtype)


def combined(
    blocks: Sequence[tf.Tensor],
    routes: Sequence[routing.Route],
    bag: batch.Bag,
    combiner: str,
) -> tf.Tensor:
    """Combines the messages of the shards, on the worker: `[batch, dim]`."""
    sums = tf.add_n(
        [
            sum_of_block(block, route, bag.num_segments)
            for block, route in zip(blocks, routes, strict=True)
        ]
    )
    if combiner == "sum":
        return sums
    weights = bag.weights
    if weights is None:
        weights = tf.ones_like(bag.segments, sums.dtype)
    if combiner == "sqrtn":
        weights = weights * weights
    total = tf.math.unsorted_segment_sum(weights, bag.segments, bag.num_segments)
    if combiner == "sqrtn":
        total = tf.sqrt(total)
    return tf.math.divide_no_nan(sums, total[:, tf.newaxis])
