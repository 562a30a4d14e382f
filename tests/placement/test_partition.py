import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist import VariableSpec
from tfdist.placement.partition import Partition, PartitionError, Shard
from tfdist.variables.creation import partition_variables
from tfdist.variables.shard_layout import layout_of

from ..support.raising import raises


def variable(*shape: int) -> VariableSpec:
    return VariableSpec("layer/kernel", shape, "float32", 4)


def test_shards_say_their_size_ps_and_shape():
    partition = Partition(1, ((2, 0, 5), (0, 5, 7)))
    assert partition.bounds[0] == Shard(2, 0, 5)
    assert partition.sizes == (5, 2)
    assert partition.ps == (2, 0)
    assert partition.shard_shape((3, 7), 1) == (3, 2)
    assert partition == Partition.of_sizes(1, (5, 2), (2, 0))
    partition.check(variable(3, 7), num_ps=3)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1))
def test_shards_hold_all_of_the_variable(shards):
    sizes, ps = zip(*shards, strict=True)
    whole = variable(sum(sizes), 3)
    partition = Partition.of_sizes(0, sizes, ps)
    partition.check(whole, 4)
    assert sum(partition.bytes_per_ps(whole, 4)) == whole.size_bytes


@pytest.mark.parametrize(
    ("axis", "bounds", "message"),
    [
        (0, (), "at least one shard"),
        (-1, ((0, 0, 1),), "axis -1"),
        (0, ((0, 1, 2),), r"shard 0 is \[1, 2\): it begins at 0"),
        (0, ((0, 0, 2), (1, 3, 4)), r"shard 1 is \[3, 4\): it begins at 2"),
        (0, ((0, 0, 2), (1, 2, 2)), r"shard 1 is \[2, 2\).*not empty"),
    ],
)
def test_what_is_no_partition_is_refused(axis, bounds, message):
    with pytest.raises(PartitionError, match=message):
        Partition(axis, bounds)


def test_as_many_ps_as_shards():
    with raises(PartitionError, "2 shards", "1 ps"):
        Partition.of_sizes(0, (1, 2), (0,))


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Partition(2, ((0, 0, 1),)), r"shape \(3, 7\) has no axis 2"),
        (Partition(1, ((0, 0, 6),)), "add up to 6 along axis 1, which is 7"),
        (Partition(0, ((0, 0, 1), (2, 1, 3))), "on ps 2; the cluster has the ps 0 to"),
        (Partition(0, ((-1, 0, 3),)), "on ps -1"),
    ],
)
def test_a_partition_of_another_variable_is_refused(partition, message):
    with pytest.raises(PartitionError, match=f"layer/kernel.*{message}"):
        partition.check(variable(3, 7), num_ps=2)


def test_rows_that_are_dealt_out_are_even():
    uneven = Partition.of_sizes(0, (1, 2), (0, 1))
    with raises(PartitionError, "layer/kernel", "(2, 1) rows"):
        layout_of(uneven, "mod", "layer/kernel")
    assert layout_of(uneven, "div").partition == uneven


def test_a_scope_wants_a_partitioner():
    with raises(TypeError, "FixedShardsPartitioner", "received 5"):
        partition_variables(5).__enter__()
