"""Train with tf_keras layers after `import tensorflow_estimator` has failed."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf

try:
    import tensorflow_estimator  # noqa: F401
except Exception as error:
    print(type(error).__name__)
from tfdist import estimator


def model_fn(features, labels, mode):
    value = tf.compat.v1.layers.dense(features, 1)
    loss = tf.reduce_mean(tf.square(value - labels))
    step = tf.compat.v1.train.get_global_step()
    train_op = tf.compat.v1.train.AdamOptimizer().minimize(loss, step)
    metrics = {"loss_again": tf.keras.metrics.Mean()}
    metrics["loss_again"].update_state(loss)
    return estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
    )


def input_fn():
    return tf.data.Dataset.from_tensors((tf.ones([4, 3]), tf.ones([4, 1]))).repeat(9)


model = estimator.Estimator(model_fn)
model.train(input_fn, steps=5)
print(model.evaluate(input_fn)["global_step"], model.get_variable_names()[2:4])
