"""A frozen base under a new head, and then fine-tuning of all but its statistics."""

import keras
import numpy as np
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.25


def make_base():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
        ],
        name="base",
    )


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(110, 8, 8, 1)).astype("float32")
    y = (x[:, 1:, :, 0] * x[:, :-1, :, 0]).mean(axis=(1, 2)) > 0
    y = y.astype("float32")
    x[y == 1] += 0.7
    data = {"batch_size": 32, "shuffle": False, "verbose": 0}

    with strategy.scope():
        base = make_base()
        base.trainable = False
        inputs = keras.Input((8, 8, 1))
        outputs = layers.Dense(1)(base(inputs, training=False))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        metrics = [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0)]
        model.compile(keras.optimizers.Adam(0.05), loss, metrics=metrics)
    before = [np.array(w) for w in base.get_weights()]
    model.fit(x, y, epochs=3, **data)
    pairs = zip(before, base.get_weights(), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)

    base.trainable = True
    for layer in base.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.trainable = False
    with strategy.scope():
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=metrics)
    model.fit(x, y, epochs=4, **data)
    found = model.evaluate(x, y, return_dict=True, verbose=0)
    return {"accuracy": found["accuracy"]}, model
