"""Data that the strategy distributes, and a model whose predictions are strings."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.15

BATCH = 16


class Names(layers.Layer):
    """Names the class of each row."""

    def call(self, logits):
        kinds = tf.strings.as_string(tf.argmax(logits, axis=1))
        return tf.strings.join(["kind ", kinds])


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 6)).astype("float32")
    y = (x[:, :3].argmax(1)).astype("int32")
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(24, "relu"), layers.Dense(3)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
        named = keras.Model(model.inputs, Names()(model.outputs[0]))
    model.fit(
        strategy.experimental_distribute_dataset(rows),
        validation_data=strategy.experimental_distribute_dataset(rows),
        class_weight={0: 1.0, 1: 2.0, 2: 1.0},
        epochs=6,
        verbose=0,
    )
    names = named.predict(x, batch_size=BATCH, verbose=0)
    expected = model.predict(x, batch_size=BATCH, verbose=0).argmax(1)
    assert [name.decode() for name in names.ravel()] == [f"kind {e}" for e in expected]
    found = model.evaluate(x, y, return_dict=True, verbose=0)
    return {"accuracy": found["accuracy"]}, model
