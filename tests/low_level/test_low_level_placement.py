"""`GreedyLoadBalancing` and partitioners in TF1 style, with `replica_device_setter`."""

import pytest
import tensorflow as tf

import tfdist

from ..support.raising import raises

tf1 = tf.compat.v1
CLUSTER = {"ps": ["a:1", "b:1"], "worker": ["c:1"]}
SIZES = [5, 0, 3, 2, 1, 1]


def on(ps_strategy, cluster=CLUSTER):
    setter = tf1.train.replica_device_setter(cluster=cluster, ps_strategy=ps_strategy)
    return tf1.device(setter)


def ps_of(variable) -> int:
    return tf.DeviceSpec.from_string(variable.device).task


@pytest.fixture(params=[True, False], ids=["resource", "ref"])
def get_variable(request):
    with tf.Graph().as_default():
        yield lambda name, shape, **options: tf1.get_variable(
            name, shape, use_resource=request.param, **options
        )


@pytest.mark.parametrize(
    "greedy",
    [
        lambda: tfdist.GreedyLoadBalancing(3, tfdist.byte_size_load_fn),
        lambda: tfdist.GreedyLoadBalancing(num_tasks=3),
    ],
    ids=["TF1's form", "by name"],
)
def test_the_least_loaded_ps_gets_the_variable(get_variable, greedy):
    with on(greedy(), {"ps": ["a:1", "b:1", "c:1"], "worker": ["d:1"]}):
        placed = [ps_of(get_variable(f"v{i}", (n,))) for i, n in enumerate(SIZES)]
    # Loads:        5 0 0 | 5 0 0 | 5 3 0 | 5 3 2 | 5 3 3 | 5 4 3
    assert placed == [0, 1, 1, 2, 2, 1]


def test_a_load_fn_of_tf1_is_asked_of_operations(get_variable):
    asked = []

    def by_count(op):
        asked.append(op)
        return 1.0

    with on(tfdist.GreedyLoadBalancing(2, by_count)):
        variables = [get_variable(f"v{i}", (1000**i,)) for i in range(3)]
        total = tf.add_n([tf.reduce_sum(each) for each in variables])
    assert [ps_of(each) for each in variables] == [0, 1, 0]
    assert asked == [variable.op for variable in variables]
    assert total.device == "/job:worker"


def test_slots_live_beside_their_variable(get_variable):
    with on(tfdist.GreedyLoadBalancing(2)):
        variables = [get_variable(f"v{i}", (n,)) for i, n in enumerate((9, 1, 2))]
        loss = tf.add_n([tf.reduce_sum(each) for each in variables])
        adam = tf1.train.AdamOptimizer()
        adam.minimize(loss)
    assert [ps_of(each) for each in variables] == [0, 1, 1]
    slots = [(adam.get_slot(v, name), v) for v in variables for name in ("m", "v")]
    assert [ps_of(slot) for slot, _ in slots] == [ps_of(v) for _, v in slots]


@pytest.mark.parametrize(
    ("partitioner", "rows"),
    [
        (tfdist.fixed_size_partitioner(4), [3, 3, 2, 2]),
        (tfdist.MaxSizePartitioner(4 * 8 * 4), [4, 3, 3]),
        (tfdist.MinSizePartitioner(4 * 8 * 4, max_shards=2), [5, 5]),
        (tf1.fixed_size_partitioner(4), [3, 3, 2, 2]),
    ],
    ids=["fixed", "max", "min", "TF1's"],
)
def test_shards_are_spread_over_the_ps(get_variable, partitioner, rows):
    with on(tfdist.GreedyLoadBalancing(2)):
        table = get_variable("table", (10, 8), partitioner=partitioner)
        bias = get_variable("bias", (), partitioner=None)
    shards = list(table)
    assert [shard.shape[0] for shard in shards] == rows
    expected = tfdist.GreedyLoadBalancing(load_fn=float)
    assert [ps_of(shard) for shard in shards] == [expected.place(n, 2) for n in rows]
    assert ps_of(bias) in (0, 1)


def test_the_number_of_ps_has_to_be_known(get_variable):
    with (
        on(tfdist.GreedyLoadBalancing()),
        raises(ValueError, "tfdist.GreedyLoadBalancing(num_tasks"),
    ):
        get_variable("v", (3,))


@pytest.mark.parametrize("num_tasks", [0, 2.0, True, tfdist.byte_size_load_fn])
def test_a_number_of_ps_that_is_none_is_refused(num_tasks):
    with raises(TypeError, "num_tasks", "load_fn="):
        tfdist.GreedyLoadBalancing(num_tasks)


def test_the_number_of_ps_is_that_of_the_cluster():
    greedy = tfdist.GreedyLoadBalancing(num_tasks=2)
    with raises(ValueError, "2 ps", "3"):
        greedy.place(tfdist.VariableSpec("v", (1,), "float32", 4), 3)


def test_what_has_no_size_needs_a_load_fn_of_its_own():
    with tf.Graph().as_default():
        table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64)
        unknown = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=None, name="unknown")
    for op in (table.op, unknown.op):
        with pytest.raises(
            ValueError, match=f"the size of {op.name}.*your own load_fn"
        ):
            tfdist.GreedyLoadBalancing(2)(op)
    assert tfdist.GreedyLoadBalancing(2, lambda op: 1.0)(table.op) == 0
