"""Counts steps in a variable on the ps; each says so where it runs."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count = tf.Variable(0.0)


@tf.function
def step():
    tf.print("a step ran here")
    count.assign_add(1.0)


for _ in range(20):
    coordinator.schedule(step)
coordinator.join()
print(f"counted {count.numpy():g} on {count.device}")
