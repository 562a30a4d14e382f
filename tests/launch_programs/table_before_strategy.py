"""Trains with a table, and models, that this process made before it joined its cluster."""

import keras
import tensorflow as tf

early = keras.layers.StringLookup(
    vocabulary=["a", "b"], output_mode="one_hot", name="early"
)
WORDS = tf.data.Dataset.from_tensor_slices(["a"] * 8)
before = WORDS.map(early).batch(4)
ROWS = tf.zeros([8, 4]), tf.zeros([8, 1])
layer = keras.layers.Dense(1, name="early_dense")
earlier = keras.Sequential([keras.Input((4,)), layer], name="earlier")
error = keras.metrics.MeanAbsoluteError(name="early_error")


def model(*layers, inputs=(4,), dtype="float32", metrics=()):
    model = keras.Sequential([keras.Input(inputs, dtype=dtype), *layers])
    model.compile("sgd", "mse", metrics=metrics)
    return model


if __name__ == "__main__":
    import tfdist

    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        earlier.compile("sgd", "mse")
        outer = model(earlier)
        measured = model(keras.layers.Dense(1), metrics=[error])
        looking_up = model(early, keras.layers.Dense(1), inputs=(1,), dtype="string")
    for use in (
        lambda: earlier.fit(*ROWS, verbose=0),
        lambda: earlier.predict(ROWS[0], verbose=0),
        lambda: outer.evaluate(*ROWS, verbose=0),
        lambda: earlier.train_on_batch(*ROWS),
        lambda: measured.fit(*ROWS, verbose=0),
        lambda: looking_up.fit(tf.constant([["a"]] * 8), ROWS[1], verbose=0),
        lambda: outer.predict(before, verbose=0),
        lambda: WORDS.map(early),
    ):
        try:
            use()
        except tfdist.errors.LostVariablesError as error:
            print("lost:", *str(error).split("\n"))
