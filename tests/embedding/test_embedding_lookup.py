"""The aggregated lookup and its gradients are those of TensorFlow's own lookup."""

from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfdist.embedding import routing
from tfdist.embedding.aggregated_lookup import (
    LookupBytesCounter,
    embedding_lookup_sparse_with_distributed_aggregation,
)
from tfdist.placement.partition import even_sizes

lookup = embedding_lookup_sparse_with_distributed_aggregation
stock = tf.compat.v1.nn.embedding_lookup_sparse

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 3e-2}
COMBINERS = ("mean", "sqrtn", "sum", None)


@dataclass(eq=False)
class Case:
    """A table and a batch of bags."""

    bags: list[list[int]]
    weights: list[float] | None
    num_rows: int
    num_shards: int
    combiner: str | None = "mean"
    partition_strategy: str = "mod"
    max_norm: float | None = None
    dtype: str = "float32"
    dim: int = 3

    def shards(self):
        random = np.random.default_rng(self.num_rows)
        sizes = even_sizes(self.num_rows, self.num_shards)
        return [
            tf.Variable(random.normal(size=(size, self.dim)), dtype=self.dtype)
            for size in sizes
        ]

    def sp_ids(self):
        return tf.ragged.constant(self.bags, dtype=tf.int64, ragged_rank=1).to_sparse()

    def sp_weights(self):
        if self.weights is None:
            return None
        dtype = "float32" if self.dtype == "bfloat16" else self.dtype
        return self.sp_ids().with_values(tf.constant(self.weights, dtype))

    @property
    def options(self):
        return {
            "partition_strategy": self.partition_strategy,
            "combiner": self.combiner,
            "max_norm": self.max_norm,
        }


@st.composite
def cases(draw):
    num_shards = draw(st.integers(1, 5))
    num_rows = draw(st.integers(num_shards, 23))
    ids = st.integers(0, num_rows - 1)
    if draw(st.booleans()):  # all in one partition, by `mod`
        shard = draw(st.integers(0, num_shards - 1))
        ids = st.sampled_from(range(shard, num_rows, num_shards))
    bags = draw(st.lists(st.lists(ids, max_size=6), min_size=1, max_size=8))
    count = sum(map(len, bags))
    weights = st.lists(st.floats(0.25, 4.0, width=16), min_size=count, max_size=count)
    return Case(
        bags,
        draw(st.none() | weights),
        num_rows,
        num_shards,
        draw(st.sampled_from(COMBINERS)),
        draw(st.sampled_from(routing.STRATEGIES)),
        draw(st.none() | st.sampled_from([0.5, 1.5])),
        draw(st.sampled_from(["float32", "float64"])),
    )


def result_and_gradients(look_up, case, shards, run=lambda f: f, **options):
    """Of a loss that treats every number of the result differently."""

    def step(sp_ids, sp_weights):
        return _result_and_gradients(
            look_up, case, shards, sp_ids, sp_weights, **options
        )

    return run(step)(case.sp_ids(), case.sp_weights())


def _result_and_gradients(look_up, case, shards, sp_ids, sp_weights, **options):
    with tf.GradientTape() as tape:
        if sp_weights is not None:
            tape.watch(sp_weights.values)
        result = look_up(shards, sp_ids, sp_weights, **case.options, **options)
        filled = max((i + 1 for i, bag in enumerate(case.bags) if bag), default=0)
        numbers = tf.reshape(tf.range(1, filled * case.dim + 1), [filled, case.dim])
        loss = tf.reduce_sum(result[:filled] * tf.cast(numbers, result.dtype) / 10)
    sources = [*shards, *([] if sp_weights is None else [sp_weights.values])]
    gradients = tape.gradient(
        loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return result, gradients


def assert_like_stock(case, **options):
    shards = case.shards()
    expected, expected_gradients = result_and_gradients(stock, case, shards)
    result, gradients = result_and_gradients(lookup, case, shards, **options)
    # TensorFlow's own drops the rows at the end that have no ids.
    filled = expected.shape[0]
    assert result.shape == (len(case.bags), case.dim)
    assert_close(result[:filled], expected, case)
    assert not np.any(result[filled:])
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert_close(ours, theirs, case)
    for by_shard in gradients[: len(shards)]:
        assert isinstance(by_shard, tf.IndexedSlices)
        assert len(set(by_shard.indices.numpy())) == len(by_shard.indices)


def assert_close(ours, theirs, case):
    ours, theirs = (
        tf.cast(tf.convert_to_tensor(each), tf.float64) for each in (ours, theirs)
    )
    tolerance = TOLERANCE[case.dtype]
    scale = np.max(np.abs(theirs), initial=1.0)
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale)


ROUTES = pytest.mark.parametrize("aggregate", [True, False, None])
REPEATS = Case([[], [1, 1, 7, 1], [], [7, 2]], [1.0, 2.0, 0.5, 3.0, 1.0, 4.0], 9, 2)


@pytest.mark.slow
@ROUTES
@given(case=cases())
@example(case=Case([[], []], None, 5, 2))
@example(case=REPEATS)
@settings(max_examples=30)
def test_eager_lookup_is_tensorflows(case, aggregate):
    assert_like_stock(case, aggregate=aggregate)


@pytest.mark.slow
@ROUTES
@given(case=cases())
@example(case=REPEATS)
@settings(max_examples=6)
def test_traced_lookup_is_tensorflows(case, aggregate):
    assert_like_stock(case, run=tf.function, aggregate=aggregate)


@pytest.mark.not_in_gate
@ROUTES
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 3.0]])
def test_bfloat16_rows_are_summed_in_float32(weights, aggregate):
    case = Case([[0, 5], [], [3, 5]], weights, 6, 2, "mean", dtype="bfloat16")
    assert_like_stock(case, aggregate=aggregate)
    assert lookup(case.shards(), case.sp_ids(), None).dtype == tf.bfloat16


@ROUTES
@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_no_weight_at_all_gives_zeros(combiner, aggregate):
    case = Case([[1, 2], [3]], [0.0, 0.0, 1.0], 4, 2, combiner)
    result = lookup(
        case.shards(),
        case.sp_ids(),
        case.sp_weights(),
        combiner=combiner,
        aggregate=aggregate,
    )
    assert not np.any(result[0])
    expected = stock(case.shards(), case.sp_ids(), case.sp_weights(), combiner=combiner)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@ROUTES
def test_ragged_ids_are_as_sparse_ones(aggregate):
    case = Case([[], [1, 1, 3], [2]], [1.0, 2.0, 3.0, 4.0], 4, 2)
    ids = tf.ragged.constant(case.bags, dtype=tf.int32, ragged_rank=1)
    weights = ids.with_values(tf.constant(case.weights))
    shards = case.shards()
    np.testing.assert_array_equal(
        lookup(shards, ids, weights, aggregate=aggregate),
        lookup(shards, case.sp_ids(), case.sp_weights(), aggregate=aggregate),
    )


@ROUTES
def test_tensors_and_keras_variables_are_shards_too(aggregate):
    case = Case([[0, 2], [3]], None, 4, 2)
    expected, by_variables = result_and_gradients(stock, case, case.shards())
    tensors = [tf.convert_to_tensor(shard) for shard in case.shards()]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = lookup(tensors, case.sp_ids(), None, aggregate=aggregate)
        numbers = tf.reshape(tf.range(1.0, 7.0), [2, 3])
        loss = tf.reduce_sum(result * numbers / 10)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    for ours, theirs in zip(tape.gradient(loss, tensors), by_variables, strict=True):
        assert_close(ours, theirs, case)
    variables = [keras.Variable(tensor) for tensor in tensors]
    np.testing.assert_array_equal(lookup(variables, case.sp_ids(), None), result)


def test_a_variable_that_is_not_trained_has_no_gradient():
    shard = tf.Variable(tf.ones([4, 2]), trainable=False)
    with tf.GradientTape() as tape:
        result = lookup([shard], Case([[1]], None, 4, 1).sp_ids(), None)
    assert tape.gradient(result, shard) is None


def test_gradient_of_few_rows_of_the_result():
    """It arrives as slices, and leaves each ps as dense a block as it got."""
    case = Case([[0, 2], [3], [1]], None, 4, 2)
    shards = case.shards()
    gradients = []
    for look_up in (stock, lookup):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(look_up(shards, case.sp_ids(), None), [1]))
        gradients.append(tape.gradient(loss, shards))
    for theirs, ours in zip(*gradients, strict=True):
        assert_close(ours, theirs, case)


@pytest.mark.not_in_gate
@given(case=cases())
@settings(max_examples=15)
def test_each_shard_takes_the_route_that_moves_less(case):
    totals = {}
    for aggregate in (True, False, None):
        counter = LookupBytesCounter()
        lookup(
            case.shards(),
            case.sp_ids(),
            case.sp_weights(),
            case.partition_strategy,
            aggregate=aggregate,
            counter=counter,
        )
        totals[aggregate] = counter.total()
    assert totals[True].moved == totals[True].aggregated == totals[None].aggregated
    assert totals[False].moved == totals[False].plain == totals[None].plain
    assert totals[None].moved <= min(totals[True].moved, totals[False].moved)


def test_a_shard_of_repeats_and_a_shard_of_none_take_different_routes():
    """Shard 0 is asked for one row often, shard 1 for many rows of one bag."""
    bags = [[0], [0], [0], [0, *range(1, 20, 2)]]
    counter = LookupBytesCounter()
    case = Case(bags, None, 20, 2)
    lookup(case.shards(), case.sp_ids(), None, counter=counter)
    total = counter.total()
    assert total.moved < min(total.plain, total.aggregated)


@pytest.mark.not_in_gate
def test_a_counter_adds_up_the_steps():
    counter = LookupBytesCounter()
    case = Case([[0, 1], [1]], None, 2, 1, dim=4)
    shards = case.shards()
    step = tf.function(lambda: lookup(shards, case.sp_ids(), None, counter=counter))
    for _ in range(3):
        step()
    assert counter.total().plain == 3 * 2 * (4 + 2 * 4 * 4)


@ROUTES
def test_tensorflow_optimizes_no_lookup_into_a_read_of_the_table(aggregate):
    v1 = tf.compat.v1
    traced = v1.RunOptions(output_partition_graphs=True)
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", [1000, 8], use_resource=True)
        ids = v1.placeholder(tf.int64, [None])
        bags = tf.RaggedTensor.from_uniform_row_length(ids, 2)
        rows = lookup([table], bags, None, aggregate=aggregate)
        session.run(v1.global_variables_initializer())
        found = v1.RunMetadata()
        session.run(rows, {ids: [1, 2, 1, 3]}, options=traced, run_metadata=found)
    (graph,) = found.partition_graphs
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    operations = {each.op for each in nodes}
    assert "ResourceGather" in operations
    assert "ReadVariableOp" not in operations
