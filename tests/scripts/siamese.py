"""A siamese network: one tower for anchor, positive and negative, a triplet loss."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SAME_WEIGHTS = True
WITHIN = 0.15


class DistanceLayer(layers.Layer):
    def call(self, anchor, positive, negative):
        near = ops.sum(ops.square(anchor - positive), axis=-1)
        far = ops.sum(ops.square(anchor - negative), axis=-1)
        return near, far


class SiameseModel(keras.Model):
    def __init__(self, siamese_network, margin=0.5):
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.siamese_network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        weights = self.siamese_network.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self._compute_loss(data))
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        near, far = self.siamese_network(data)
        return tf.maximum(near - far + self.margin, 0.0)

    @property
    def metrics(self):
        return [self.loss_tracker]


def main(strategy, directory):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(5, 8))
    one = rng.integers(0, 5, size=120)
    other = (one + rng.integers(1, 5, size=120)) % 5
    triplets = [centers[c] + 0.6 * rng.normal(size=(120, 8)) for c in (one, one, other)]
    triplets = tuple(each.astype("float32") for each in triplets)
    dataset = tf.data.Dataset.from_tensor_slices(triplets)
    train, val = dataset.take(100).batch(16), dataset.skip(100).batch(16)

    with strategy.scope():
        tower = keras.Sequential(
            [keras.Input((8,)), layers.Dense(16, "tanh"), layers.Dense(4)], name="tower"
        )
        inputs = [keras.Input((8,), name=n) for n in ("anchor", "positive", "negative")]
        distances = DistanceLayer()(*[tower(each) for each in inputs])
        model = SiameseModel(keras.Model(inputs, distances))
        model.compile(optimizer=keras.optimizers.SGD(0.005))
    model.fit(train, epochs=4, validation_data=val, verbose=0)

    one, near, far = (tower.predict(each, verbose=0) for each in triplets)
    near, far = (np.square(one - each).sum(axis=1) for each in (near, far))
    return {"accuracy": np.mean(near < far)}, tower
