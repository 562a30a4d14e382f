"""Train an Estimator on four logical devices and on one."""

import json

import numpy as np
import tensorflow as tf

import tfdist
from tfdist import estimator

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 4
)
x = np.random.default_rng(0).random((32, 3), np.float32)
y = x @ np.array([[1.0], [2.0], [3.0]], np.float32)


class Ring(tfdist.RingAllReduce):
    calls = 0

    def batch_reduce_implementation(self, *args, **kwargs):
        Ring.calls += 1
        return super().batch_reduce_implementation(*args, **kwargs)


def model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable(
        "w", [3, 1], initializer=tf.compat.v1.zeros_initializer()
    )
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weight) - labels))
    step = tf.compat.v1.train.get_global_step()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    return estimator.EstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, step)
    )


def train(strategy, batch_size):
    config = estimator.RunConfig(train_distribute=strategy, eval_distribute=strategy)
    model = estimator.Estimator(model_fn, config=config)

    def data():
        return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch_size)

    model.train(data, steps=20)
    metrics = model.evaluate(data, steps=2)
    return model.get_variable_value("w").ravel().tolist(), float(metrics["loss"])


four = train(tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)], Ring()), 8)
one = train(None, 32)
unasked = train(tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)]), 8)
print(json.dumps([four, one, Ring.calls, unasked]))
