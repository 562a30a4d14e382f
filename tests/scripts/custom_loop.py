"""A training loop of one's own, which needs `strategy.run` on a cluster."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.2
REFUSED = {
    "parameter_server": "an optimizer was applied outside of strategy.run. Put the step",
    "multi_worker": "an optimizer was applied outside of strategy.run. Put the step",
    "ring": "an optimizer was applied outside of strategy.run. Put the step",
}


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(8), layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
        loss_fn = keras.losses.MeanSquaredError()
        metric = keras.metrics.MeanAbsoluteError()

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = loss_fn(y, y_pred)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply(gradients, model.trainable_weights)
        metric.update_state(y, y_pred)
        return loss

    for _ in range(4):
        metric.reset_state()
        for batch in dataset:
            train_step(*batch)
    return {"mae": float(metric.result())}, model
