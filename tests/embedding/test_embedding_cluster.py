"""The aggregated lookup on two ps and two workers, each a process."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.embedding.aggregated_lookup import (
    LookupBytesCounter,
    embedding_lookup_sparse_with_distributed_aggregation,
)

from ..support.raising import raises

lookup = embedding_lookup_sparse_with_distributed_aggregation

pytestmark = pytest.mark.cluster

ROWS, DIM, RATE, STEPS = 40, 4, 0.1, 6


@pytest.fixture
def shards(strategy, monkeypatch):
    """Half a table on each ps, whatever earlier tests have placed there."""
    monkeypatch.setattr(strategy.extended.placed, "placement", tfdist.RoundRobin())
    values = np.random.default_rng(0).normal(size=(2, ROWS // 2, DIM))
    with strategy.scope():
        shards = [tf.Variable(value, dtype="float32") for value in values]
    tasks = {tf.DeviceSpec.from_string(shard.device).task for shard in shards}
    assert tasks == {0, 1}
    return shards


def sp_ids():
    ids = np.random.default_rng(1).integers(0, ROWS, size=(8, 9))
    return tf.RaggedTensor.from_tensor(ids).to_sparse()


def step_of(look_up, shards, max_norm=None, **options):
    """Returns a training step by SGD, on the device of each shard."""

    def step(ids):
        weights = ids.with_values(tf.cast(ids.values % 3 + 1, tf.float32))
        with tf.GradientTape() as tape:
            rows = look_up(shards, ids, weights, max_norm=max_norm, **options)
            loss = tf.reduce_mean(rows * rows)
        for shard, gradient in zip(shards, tape.gradient(loss, shards), strict=True):
            with tf.device(shard.device):
                update = tf.IndexedSlices(RATE * gradient.values, gradient.indices)
                shard.scatter_sub(update)
        return loss

    return step


@pytest.mark.parametrize("aggregate", [True, False, None])
def test_workers_train_as_one_process_does(strategy, shards, aggregate):
    with strategy.scope():
        counter = LookupBytesCounter()
    assert counter.total().moved == 0
    alone = [tf.Variable(shard.numpy()) for shard in shards]
    step = tf.function(
        step_of(lookup, shards, max_norm=1.5, aggregate=aggregate, counter=counter)
    )
    expected = step_of(tf.compat.v1.nn.embedding_lookup_sparse, alone, max_norm=1.5)
    for _ in range(STEPS):
        strategy.coordinator.schedule(step, args=(sp_ids(),))
        strategy.coordinator.join()
        expected(sp_ids())
    for ours, theirs in zip(shards, alone, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6)

    # A local lookup of the same ids counts the same, and each worker a share.
    local = LookupBytesCounter()
    for _ in range(STEPS):
        step_of(lookup, alone, aggregate=aggregate, counter=local)(sp_ids())
    assert counter.total() == local.total()
    assert counter.total().moved > 0


def place(op):
    spec = tf.DeviceSpec.from_string(op.device)
    return f"ps:{spec.task}" if spec.job == "ps" else "worker"


def ancestors(ops, among=lambda op: True):
    """The operations that lead to some, those included."""
    found, todo = set(ops), list(ops)
    while todo:
        for op in {tensor.op for tensor in todo.pop().inputs} - found:
            if among(op):
                found.add(op)
                todo.append(op)
    return found


def crossings(ops):
    """The tensors, with a value, that go from one place of a step to another."""
    return {
        (tensor.ref(), place(tensor.op), place(op))
        for op in ops
        for tensor in op.inputs
        if place(tensor.op) != place(op) and tensor.dtype != tf.resource
    }


def kinds_beside(op):
    """The operations in the same place that lead to one, without a way around."""
    beside = ancestors([op], among=lambda other: place(other) == place(op))
    return {each.type for each in beside}


def updates_of(step, strategy):
    """The operations that a step is traced for."""
    with strategy.scope():
        graph = tf.function(step).get_concrete_function(sp_ids()).graph
    return [op for op in graph.get_operations() if op.type.startswith("ResourceScatt")]


@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_sums_and_gradients_are_computed_on_the_ps(strategy, shards, max_norm):
    updates = updates_of(step_of(lookup, shards, max_norm=max_norm), strategy)
    assert sorted(map(place, updates)) == ["ps:0", "ps:1"]
    needed = ancestors(updates)
    crossed = crossings(needed)
    for ps in ("ps:0", "ps:1"):
        sent = [ref.deref() for ref, _, to in crossed if to == ps]
        # A message, weights, and the gradient of the block.
        assert sorted(tensor.dtype.name for tensor in sent) == [
            "float32",
            "float32",
            "int32",
        ]
        (block,) = [ref.deref() for ref, start, _ in crossed if start == ps]
        assert block.shape.as_list() == [None, DIM]
        assert "ResourceGather" in kinds_beside(block.op)
        # TensorFlow would take its shape on the ps, and send that too.
        used = {op.type for op in block.consumers() if op in needed}
        assert used & {"Shape", "Size"} == set()
    for update in updates:
        assert "UnsortedSegmentSum" in kinds_beside(update)


def test_stock_lookup_sums_rows_on_the_worker(strategy, shards):
    """Proves that the audit above can fail."""
    stock = tf.compat.v1.nn.embedding_lookup_sparse
    updates = updates_of(step_of(stock, shards, max_norm=1.5), strategy)
    sums = [op for op in ancestors(updates) if op.type == "SegmentSum"]
    assert {place(op) for op in sums} == {"worker"}


def test_a_bad_id_on_a_worker_is_an_error_on_the_chief(strategy, shards):
    step = tf.function(lambda ids: lookup(shards, ids, None))
    ids = tf.sparse.from_dense([[ROWS]])
    strategy.coordinator.schedule(step, args=(ids,))
    with raises(tf.errors.InvalidArgumentError, "0 to 39"):
        strategy.coordinator.join()
