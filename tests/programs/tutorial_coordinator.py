"""A program as TensorFlow's users write it: a resolver, servers in it, and a coordinator.

It names nothing of tfdist but what stands where `tf.distribute` stood.
"""

import socket
from contextlib import ExitStack

import keras
import tensorflow as tf

import tfdist

with ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
    for each in sockets:
        each.bind(("localhost", 0))
    hosts = [f"localhost:{each.getsockname()[1]}" for each in sockets]
spec = tf.train.ClusterSpec({"worker": hosts[:2], "ps": hosts[2:]})
# With as many threads as this machine has cores, servers of one process wait for each other.
config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)
servers = [
    tfdist.Server(spec, job_name=job, task_index=index, config=config)
    for job in ("worker", "ps")
    for index in range(2)
]
strategy = tfdist.ParameterServerStrategy(
    tfdist.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc"),
    variable_partitioner=tfdist.FixedShardsPartitioner(2),
)
coordinator = tfdist.coordinator.ClusterCoordinator(strategy)


def dataset_fn(context: tfdist.InputContext) -> tf.data.Dataset:
    rows = tf.ones([8, 4])
    return tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).repeat().batch(4)


with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit(dataset_fn(tfdist.InputContext()), steps_per_epoch=10, verbose=0)


@tf.function
def step(iterator):
    def replica_fn(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    return strategy.run(replica_fn, args=(next(iterator),))


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
for _ in range(10):
    loss = coordinator.schedule(step, args=(iterator,))
coordinator.join()
assert loss.fetch() < 1e-3
print("steps", int(model.optimizer.iterations.numpy()))
print("tasks", sorted(strategy.cluster_resolver.cluster_spec().jobs))
