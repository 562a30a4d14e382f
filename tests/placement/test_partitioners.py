import math

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tfdist
from tfdist import GreedyLoadBalancing, VariableSpec
from tfdist.placement.partition import PartitionError
from tfdist.placement.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    TargetSizePartitioner,
    fixed_size_partitioner,
    partition_of,
)

from ..support.raising import raises

theirs = tf.distribute.experimental.partitioners
shapes = st.lists(st.integers(1, 3_000), min_size=1, max_size=3)
dtypes = st.sampled_from([tf.float32, tf.float64, tf.uint8, tf.bfloat16, tf.string])
few = st.integers(1, 40)


def variable(*shape: int, dtype: tf.DType = tf.float32) -> VariableSpec:
    return VariableSpec("layer/kernel", shape, dtype.name, dtype.size)


@given(shapes, dtypes, few, st.data())
def test_fixed_shards_are_tensorflows(shape, dtype, shards, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    shape = tf.TensorShape(shape)
    wanted = theirs.FixedShardsPartitioner(shards)(shape, dtype, axis)
    assert FixedShardsPartitioner(shards)(shape, dtype, axis) == wanted
    old = tf.compat.v1.fixed_size_partitioner(shards, axis)(shape, dtype=dtype)
    assert fixed_size_partitioner(shards, axis)(shape, dtype=dtype) == old == wanted


@pytest.mark.parametrize("name", ["MinSizePartitioner", "MaxSizePartitioner"])
@given(shapes, dtypes, st.integers(1, 1 << 20), few | st.none(), few, st.data())
def test_shards_by_size_are_tensorflows(name, shape, dtype, size, shards, text, data):
    if name == "MinSizePartitioner":
        shards = shards or 1
    axis = data.draw(st.integers(0, len(shape) - 1))
    shape = tf.TensorShape(shape)
    wanted = getattr(theirs, name)(size, shards, text)(shape, dtype, axis)
    assert getattr(tfdist, name)(size, shards, text)(shape, dtype, axis) == wanted


@given(
    rows=st.lists(st.integers(1, 100_000), min_size=1, max_size=30),
    num_ps=st.integers(1, 9),
    target=st.sampled_from([1.02, 1.1, 1.5]),
)
def test_greedy_keeps_the_target_of_shards_of_target_size(rows, num_ps, target):
    total = sum(rows)
    partitioner = TargetSizePartitioner(total, num_ps, target)
    greedy, loads = GreedyLoadBalancing(), [0] * num_ps
    for count in rows:
        whole = variable(count, dtype=tf.uint8)
        partition = partition_of(partitioner, whole, num_ps, greedy)
        if partition is None:
            loads[greedy.place(whole, num_ps)] += count
        else:
            for ps, size in zip(partition.ps, partition.sizes, strict=True):
                loads[ps] += size
    assert sum(loads) == total
    # A shard is rounded up to a whole row, of one byte here.
    assert max(loads) <= target * total / num_ps + 1


def test_on_one_ps_nothing_is_split():
    partitioner = TargetSizePartitioner(1000, num_ps=1)
    assert partition_of(partitioner, variable(250), 1) is None


@given(shards=st.integers(2, 20), rows=st.integers(1, 500), num_ps=st.integers(1, 5))
def test_shards_are_even_and_cover_the_variable(shards, rows, num_ps):
    whole = variable(rows, 3)
    partition = partition_of(FixedShardsPartitioner(shards), whole, num_ps)
    if rows == 1:
        assert partition is None
        return
    partition.check(whole, num_ps)
    assert len(partition.sizes) == min(shards, rows)
    assert max(partition.sizes) - min(partition.sizes) <= 1
    assert partition.ps == tuple(i % num_ps for i in range(len(partition.sizes)))


def test_even_shards_are_as_tensorflows_own():
    # 10 rows in 4 shards, as ParameterServerStrategy of TensorFlow splits them.
    partition = partition_of(FixedShardsPartitioner(4), variable(10, 2), 2)
    assert partition.sizes == (3, 3, 2, 2)


class ByName:
    def __init__(self):
        self.asked = []

    def place(self, variable, num_ps):
        self.asked.append((variable.name, variable.shape))
        return 1


def test_a_placement_is_asked_for_each_shard():
    placement = ByName()
    whole = variable(4, 5)
    partition = partition_of(fixed_size_partitioner(2, axis=1), whole, 3, placement)
    assert partition.axis == 1
    assert partition.ps == (1, 1)
    assert placement.asked == [
        ("layer/kernel/part_0", (4, 3)),
        ("layer/kernel/part_1", (4, 2)),
    ]


def test_what_stays_whole_asks_no_placement():
    placement = ByName()
    assert partition_of(FixedShardsPartitioner(1), variable(9), 3, placement) is None
    assert partition_of(FixedShardsPartitioner(9), variable(), 3, placement) is None
    assert placement.asked == []


@pytest.mark.parametrize(
    "partitioner",
    [
        theirs.FixedShardsPartitioner(2),
        theirs.MinSizePartitioner(16, max_shards=2),
        theirs.MaxSizePartitioner(32),
        tf.compat.v1.fixed_size_partitioner(2),
        tf.compat.v1.variable_axis_size_partitioner(32),
    ],
)
def test_tensorflows_own_are_asked(partitioner):
    assert partition_of(partitioner, variable(4, 4), 2).sizes == (2, 2)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (2, "that is not a list"),
        (None, "that is not a list"),
        ([2], "the variable has 2 axes"),
        ([2, 2], "split along more than one axis"),
        ([0, 1], "an axis has at least one shard"),
        ([-1, 1], "an axis has at least one shard"),
        ([5, 1], "axis 0 has 4 indices, fewer than shards"),
        ([1.0, 2.5], "not whole numbers"),
        ([True, 1], "not whole numbers"),
    ],
)
def test_nonsense_is_refused_by_name(answer, message):
    def odd_partitioner(shape, dtype, axis=0):
        return answer

    with pytest.raises(PartitionError, match=message) as caught:
        partition_of(odd_partitioner, variable(4, 6), 2)
    assert "odd_partitioner" in str(caught.value)
    assert "layer/kernel of shape (4, 6)" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedShardsPartitioner(0),
        lambda: fixed_size_partitioner(-1),
        lambda: MinSizePartitioner(0),
        lambda: MinSizePartitioner(max_shards=0),
        lambda: MaxSizePartitioner(0),
        lambda: MaxSizePartitioner(1, max_shards=0),
        lambda: MaxSizePartitioner(math.nan),
        lambda: TargetSizePartitioner(0, 2),
        lambda: TargetSizePartitioner(9, 0),
        lambda: FixedShardsPartitioner(1.5),
        lambda: FixedShardsPartitioner(True),
        lambda: MinSizePartitioner("9"),
        lambda: MinSizePartitioner(max_shards=2.0),
    ],
)
def test_less_than_one_and_what_is_no_number_is_refused(make):
    with pytest.raises(
        ValueError, match=r"must be a (whole )?number, at least 1; received"
    ):
        make()


def test_an_axis_is_a_whole_number_from_0():
    for axis in (-1, 0.5):
        words = rf"axis must be .* at least 0; received {axis}"
        with pytest.raises(ValueError, match=words):
            fixed_size_partitioner(2, axis=axis)


def test_a_variable_without_the_axis_stays_whole():
    columns = fixed_size_partitioner(2, axis=1)
    assert partition_of(columns, variable(4), 2) is None
    assert partition_of(columns, variable(4, 4), 2).axis == 1


def test_a_partitioner_that_fails_is_named_with_the_variable():
    theirs = tf.compat.v1.fixed_size_partitioner(2, axis=1)
    with pytest.raises(PartitionError) as caught:
        partition_of(theirs, variable(4), 2)
    assert "_partitioner cannot split layer/kernel of shape (4,)" in str(caught.value)
    assert "IndexError" in str(caught.value)


def test_a_target_of_one_or_less_is_refused():
    with raises(ValueError, "target", "received 1.0"):
        TargetSizePartitioner(100, 2, 1.0)


def test_an_axis_that_is_not_there_is_refused():
    with raises(PartitionError, "(4,)", "axis 1"):
        MaxSizePartitioner(8)((4,), tf.float32, axis=1)
    with raises(PartitionError, "fully known", "received (None, 2)"):
        FixedShardsPartitioner(2)(tf.TensorShape([None, 2]), tf.float32)
