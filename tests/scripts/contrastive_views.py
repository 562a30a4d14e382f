"""Contrastive learning without labels, of two views that come as a pair of inputs."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SAME_WEIGHTS = True
WITHIN = 0.2
REFUSED = {
    "multi_worker": r"Transpose .*contrastive_views.*tfdist\.whole_batch",
    "ring": r"Transpose .*contrastive_views.*tfdist\.whole_batch",
}


class ContrastiveModel(keras.Model):
    def __init__(self, temperature=0.2):
        super().__init__()
        self.temperature = temperature
        self.encoder = keras.Sequential(
            [keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(8)]
        )
        self.projection = keras.Sequential(
            [keras.Input((8,)), layers.Dense(8, "relu"), layers.Dense(8)]
        )
        self.loss_tracker = keras.metrics.Mean(name="c_loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")

    @property
    def metrics(self):
        return [self.loss_tracker, self.accuracy]

    def contrastive_loss(self, one, other):
        one = ops.normalize(one, axis=1)
        other = ops.normalize(other, axis=1)
        similarities = ops.matmul(one, ops.transpose(other)) / self.temperature
        labels = ops.arange(ops.shape(one)[0])
        self.accuracy.update_state(labels, similarities)
        both_ways = [similarities, ops.transpose(similarities)]
        crossentropy = keras.losses.sparse_categorical_crossentropy
        losses = [crossentropy(labels, s, from_logits=True) for s in both_ways]
        return (ops.mean(losses[0]) + ops.mean(losses[1])) / 2

    def train_step(self, data):
        one, other = data
        with tf.GradientTape() as tape:
            features = self.encoder(one, training=True)
            others = self.encoder(other, training=True)
            loss = self.contrastive_loss(
                self.projection(features, training=True),
                self.projection(others, training=True),
            )
        weights = self.encoder.trainable_weights + self.projection.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}


def main(strategy, directory):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 30)
    rng.shuffle(labels)
    x = (rng.normal(size=(5, 8))[labels] + 0.5 * rng.normal(size=(150, 8))).astype("f")
    views = [x + 0.3 * rng.normal(size=x.shape).astype("f") for _ in range(2)]
    dataset = tf.data.Dataset.from_tensor_slices(tuple(views)).shuffle(150).batch(32)

    with strategy.scope():
        model = ContrastiveModel()
        model.compile(optimizer=keras.optimizers.Adam(0.01))
    model.fit(dataset, epochs=6, verbose=0)

    features = model.encoder.predict(x, verbose=0)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    near = features @ features.T - 2 * np.eye(len(features))
    return {"accuracy": np.mean(labels[near.argmax(axis=1)] == labels)}, model
