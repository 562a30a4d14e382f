"""The aggregated lookup in TF1 style: on the ps, and with TensorFlow's own values."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist

from ..support.raising import raises

tf1 = tf.compat.v1
lookup = tfdist.embedding.embedding_lookup_sparse_with_distributed_aggregation
CLUSTER = {"ps": ["a:1", "b:1"], "worker": ["c:1"]}
BAGS = [[1, 3, 1], [9], [], [0, 2, 4, 6, 8], [5, 7]]
WEIGHTS = np.linspace(0.5, 3.0, sum(map(len, BAGS)), dtype="float32")


def table(use_resource: bool, shards: int = 3):
    return tf1.get_variable(
        "table",
        initializer=tf.constant(
            np.random.default_rng(0).normal(size=(10, 4)), "float32"
        ),
        partitioner=tfdist.fixed_size_partitioner(shards),
        use_resource=use_resource,
    )


def bags(is_weighted: bool):
    ids = tf.ragged.constant(BAGS, tf.int64, ragged_rank=1).to_sparse()
    return ids, ids.with_values(tf.constant(WEIGHTS)) if is_weighted else None


def on_cluster():
    greedy = tfdist.GreedyLoadBalancing(num_tasks=2)
    return tf1.device(
        tf1.train.replica_device_setter(cluster=CLUSTER, ps_strategy=greedy)
    )


def dense_gradients(result, shards):
    return [
        tf.convert_to_tensor(each)
        for each in tf1.gradients(tf.reduce_sum(result * result), shards)
    ]


def on_this_machine(meta_graph):
    for function in meta_graph.graph_def.library.function:
        for node in function.node_def:
            node.device = ""
    return meta_graph


@pytest.mark.slow
@pytest.mark.parametrize(
    ("combiner", "strategy", "aggregate", "use_resource", "is_weighted"),
    [
        ("sum", "div", True, True, True),
        ("mean", "div", None, False, False),
        ("sqrtn", "div", True, True, False),
        ("sum", "mod", False, False, False),
        ("mean", None, True, True, True),
        ("sqrtn", "mod", True, False, True),
    ],
)
def test_values_and_gradients_are_those_of_tensorflow(
    combiner, strategy, aggregate, is_weighted, use_resource
):
    with tf.Graph().as_default():
        with on_cluster():
            params = table(use_resource)
            ids, weights = bags(is_weighted)
            ours = lookup(params, ids, weights, strategy, combiner, aggregate=aggregate)
            if strategy == "div":  # the only one of TensorFlow 2
                stock = tf.nn.embedding_lookup_sparse(
                    list(params), ids, weights, combiner=combiner
                )
            else:
                stock = tf1.nn.embedding_lookup_sparse(
                    params, ids, weights, "mod", combiner=combiner
                )
            shards = list(params)
            gradients = dense_gradients(ours, shards), dense_gradients(stock, shards)
        names = tf.nest.map_structure(lambda t: t.name, [ours, stock, *gradients])
        meta_graph = on_this_machine(tf1.train.export_meta_graph(clear_devices=True))
    with tf.Graph().as_default(), tf1.Session() as session:
        saver = tf1.train.import_meta_graph(meta_graph)
        assert saver is not None
        session.run(tf1.global_variables_initializer())
        ours, stock, *gradients = session.run(names)
    np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)
    for each, expected in zip(*gradients, strict=True):
        assert np.any(expected)
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_each_shard_sums_on_its_own_ps(use_resource):
    with tf.Graph().as_default() as graph, on_cluster():
        params = table(use_resource)
        ids, weights = bags(is_weighted=True)
        result = lookup(params, ids, weights, combiner="sum", aggregate=True)
        before = len(graph.get_operations())
        gradients = tf1.gradients(tf.reduce_sum(result * result), list(params))
    shards = [shard.device for shard in params]
    assert shards == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:1"]
    operations = graph.get_operations()
    sums = [op.device for op in operations[:before] if op.type == "UnsortedSegmentSum"]
    # One of each shard, then those of what came from the shards.
    assert sums == [*shards, *["/job:worker"] * 3]
    assert result.device == "/job:worker"
    assert [each.values.device for each in gradients] == shards
    backward = [
        op.device for op in operations[before:] if op.type == "UnsortedSegmentSum"
    ]
    assert sorted(backward) == sorted(sums)


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_one_block_of_each_shard_crosses_to_the_worker(use_resource):
    with tf.Graph().as_default() as graph, on_cluster():
        params = table(use_resource)
        before = len(graph.get_operations())
        lookup(params, *bags(is_weighted=True), combiner="sum", aggregate=True)
    crossing = {
        tensor.name: tensor.device
        for op in graph.get_operations()[before:]
        for tensor in op.inputs
        if "ps" in tensor.device and "ps" not in op.device
    }
    assert list(crossing.values()) == [shard.device for shard in params]


def test_a_table_that_is_split_by_columns_is_refused():
    with tf.Graph().as_default():
        columns = tf1.get_variable(
            "columns", (10, 4), partitioner=tfdist.fixed_size_partitioner(2, axis=1)
        )
        with raises(ValueError, "(10, 4)", "axis 0"):
            lookup(columns, *bags(is_weighted=False))
