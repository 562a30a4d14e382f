"""Random layers: augmentation in the dataset and in the model, and dropout."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = False
WITHIN = 0.3


def main(strategy, directory):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, size=150)
    images = 0.2 * rng.normal(size=(150, 10, 10, 1)).astype("float32")
    images[labels == 1, 3:7, 3:7] += 1.0
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    flip = layers.RandomFlip("horizontal")
    train = dataset.shuffle(150).batch(32)
    train = train.map(lambda x, y: (flip(x, training=True), y))

    with strategy.scope():
        augment = keras.Sequential(
            [layers.RandomTranslation(0.1, 0.1), layers.RandomContrast(0.1)]
        )
        inputs = keras.Input((10, 10, 1))
        x = layers.Conv2D(8, 3, strides=2, use_bias=False)(augment(inputs))
        x = layers.Activation("relu")(layers.BatchNormalization()(x))
        x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
        model = keras.Model(inputs, layers.Dense(1)(x))
        model.compile(
            keras.optimizers.Adam(0.03),
            keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0)],
        )
    model.fit(train, epochs=6, verbose=0)
    return {
        "accuracy": model.evaluate(train, return_dict=True, verbose=0)["accuracy"]
    }, model
