"""A `train_step` that adds up means, a sum and a Keras loss, and a `test_step`."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SAME_WEIGHTS = True
WITHIN = 0.1


class Regressor(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.huber_tracker = keras.metrics.Mean(name="huber")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.huber = keras.losses.Huber()

    def losses_of(self, y, y_pred):
        huber = self.huber(y, y_pred)
        largest = tf.reduce_mean(tf.reduce_max(tf.abs(y - y_pred), axis=-1))
        decay = tf.add_n([tf.reduce_sum(w**2) for w in self.trainable_variables])
        return huber, huber + ops.mean((y - y_pred) ** 2) + 0.1 * largest + 1e-3 * decay

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            huber, loss = self.losses_of(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.huber_tracker.update_state(huber)
        self.mae_metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        huber, loss = self.losses_of(y, y_pred)
        self.loss_tracker.update_state(loss)
        self.huber_tracker.update_state(huber)
        self.mae_metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self):
        return [self.loss_tracker, self.huber_tracker, self.mae_metric]


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 6)).astype("float32")
    y = np.stack([x.sum(axis=1), x[:, 0] - x[:, 1]], axis=1)

    with strategy.scope():
        inputs = keras.Input((6,))
        outputs = layers.Dense(2)(layers.Dense(16, "tanh")(inputs))
        model = Regressor(inputs, outputs)
        model.compile(optimizer=keras.optimizers.SGD(0.05))
    history = model.fit(
        x[:80],
        y[:80],
        batch_size=32,
        epochs=5,
        shuffle=False,
        validation_data=(x[80:], y[80:]),
        verbose=0,
    ).history
    metrics = {"val_mae": history["val_mae"][-1], "huber": history["huber"][-1]}
    return metrics, model
