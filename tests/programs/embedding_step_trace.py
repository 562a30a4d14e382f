"""Print which tensors cross between devices in a step of an embedding."""

import json

import numpy as np
import tensorflow as tf

from tfdist.embedding import cost
from tfdist.embedding.aggregated_lookup import LookupBytesCounter
from tfdist.embedding.aggregated_lookup import (
    embedding_lookup_sparse_with_distributed_aggregation as lookup,
)

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 3
)

v1 = tf.compat.v1
BATCH, PER_BAG, ROWS, DIM = 16, 12, 400, 8
EVERY_TENSOR = v1.RunOptions(trace_level=3, output_partition_graphs=True)


def sent(metadata):
    outputs = {
        (node.node_name, output.slot): output.tensor_description
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        for output in node.output
    }
    for node in (n for graph in metadata.partition_graphs for n in graph.node):
        if node.op == "_Send":
            source, _, slot = node.input[0].partition(":")
            tensor = outputs[source, int(slot or 0)]
            shape = [dim.size for dim in tensor.shape.dim]
            dtype = tf.as_dtype(tensor.dtype)
            yield {
                "from": int(node.device[-1]),
                "to": int(node.attr["recv_device"].s.decode()[-1]),
                "dtype": dtype.name,
                "shape": shape,
                "bytes": int(np.prod(shape)) * dtype.size,
            }


def trace(aggregate, weighted, combiner, max_norm, ids):
    places = np.argwhere(np.ones([BATCH, PER_BAG]))
    with tf.Graph().as_default(), tf.device("cpu:0"):
        shards = []
        for ps in (1, 2):
            with tf.device(f"cpu:{ps}"):
                shards.append(tf.Variable(tf.ones([ROWS // 2, DIM])))
        values = v1.placeholder(tf.int64, [None])
        weights = v1.placeholder(tf.float32, [None])
        sp_ids = tf.SparseTensor(places, values, [BATCH, PER_BAG])
        sp_weights = sp_ids.with_values(weights) if weighted else None
        counter = LookupBytesCounter()
        with tf.GradientTape() as tape:
            rows = lookup(
                shards,
                sp_ids,
                sp_weights,
                "mod",
                combiner,
                max_norm,
                aggregate=aggregate,
                counter=counter,
            )
            loss = tf.reduce_sum(rows * rows)
        updates = []
        for shard, gradient in zip(shards, tape.gradient(loss, shards), strict=True):
            with tf.device(shard.device):
                updates.append(
                    tf.raw_ops.ResourceScatterSub(
                        resource=shard.handle,
                        indices=gradient.indices,
                        updates=0.1 * gradient.values,
                    )
                )
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            metadata = v1.RunMetadata()
            session.run(
                [loss, *updates],
                {values: ids, weights: np.ones(ids.size)},
                EVERY_TENSOR,
                metadata,
            )
    return list(sent(metadata))


def model(ids, weighted):
    sizes = {"row_bytes": DIM * 4, "id_bytes": 4}
    bags = np.repeat(np.arange(BATCH), PER_BAG)
    plain, aggregated = [], []
    for ps in (0, 1):
        mine = ids % 2 == ps
        plain.append(cost.plain_bytes(len(set(ids[mine])), **sizes))
        aggregated.append(
            cost.aggregated_bytes(
                int(mine.sum()),
                len(set(bags[mine])),
                **sizes,
                weight_bytes=4 * weighted,
            )
        )
    # A message begins with the number of its ids, which the model does not count.
    beside = len(plain) * sizes["id_bytes"]
    return {
        "plain": beside + sum(plain),
        "aggregated": beside + sum(aggregated),
        "chosen": beside + sum(map(min, plain, aggregated)),
    }


random = np.random.default_rng(0)
FEW = random.integers(0, 6, BATCH * PER_BAG)
MANY = random.integers(0, ROWS, BATCH * PER_BAG)
MIXED = np.where(MANY % 2, MANY, 0)
for name, ids in {"few": FEW, "many": MANY, "mixed": MIXED}.items():
    for weighted in (False, True):
        routes = {
            route: trace(aggregate, weighted, combiner, max_norm, ids)
            for route, aggregate, combiner, max_norm in [
                ("plain", False, "sum", None),
                ("aggregated", True, "mean", 1.0),
                ("chosen", None, "sqrtn", None),
            ]
        }
        print(
            json.dumps(
                {
                    "ids": name,
                    "weighted": weighted,
                    "model": model(ids, weighted),
                    "sent": routes,
                }
            )
        )
