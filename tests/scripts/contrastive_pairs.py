"""Metric learning: a batch is an anchor and a positive of each class."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.2
REFUSED = {
    "multi_worker": "belong together, such as pairs, as several inputs",
    "ring": "belong together, such as pairs, as several inputs",
}

CLASSES = 6


class AnchorPositivePairs(keras.utils.PyDataset):
    """Batches of shape (2, classes, features)."""

    def __init__(self, x, steps, **kwargs):
        super().__init__(**kwargs)
        self.x = x  # (classes, examples, features)
        self.steps = steps

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        batch = np.empty((2, CLASSES, self.x.shape[-1]), dtype="float32")
        for each in range(CLASSES):
            one, other = rng.choice(self.x.shape[1], size=2, replace=False)
            batch[0, each] = self.x[each, one]
            batch[1, each] = self.x[each, other]
        return batch


class EmbeddingModel(keras.Model):
    def train_step(self, data):
        if isinstance(data, tuple):
            data = data[0]
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            anchor_embeddings = self(anchors, training=True)
            positive_embeddings = self(positives, training=True)
            similarities = tf.einsum(
                "ae,pe->ap", anchor_embeddings, positive_embeddings
            )
            labels = tf.range(tf.shape(similarities)[0])
            loss = self.compute_loss(y=labels, y_pred=similarities / 0.2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, similarities)
        return {m.name: m.result() for m in self.metrics}


def main(strategy, directory):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(CLASSES, 1, 8))
    x = (centers + 0.7 * rng.normal(size=(CLASSES, 20, 8))).astype("float32")

    with strategy.scope():
        inputs = keras.Input((8,))
        embeddings = layers.Dense(4)(layers.Dense(16, "relu")(inputs))
        model = EmbeddingModel(inputs, layers.UnitNormalization()(embeddings))
        model.compile(
            optimizer=keras.optimizers.Adam(0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
    model.fit(AnchorPositivePairs(x, steps=10), epochs=3, shuffle=False, verbose=0)

    vectors = model.predict(x.reshape(-1, 8), verbose=0)
    near = vectors @ vectors.T - 2 * np.eye(len(vectors))
    labels = np.repeat(np.arange(CLASSES), 20)
    return {"accuracy": np.mean(labels[near.argmax(axis=1)] == labels)}, model
