"""Trains with a table, and models, that this process made before it joined its cluster."""

import keras
import tensorflow as tf

early = keras.layers.StringLookup(
    vocabulary=["a", "b"], output_mode="one_hot", name="early"
)
ROWS = tf.zeros([8, 4]), tf.zeros([8, 1])
layer = keras.layers.Dense(1, name="early_dense")
earlier = keras.Sequential([keras.Input((4,)), layer], name="earlier")

if __name__ == "__main__":
    import tfdist

    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        earlier.compile("sgd", "mse")
        shared = keras.Sequential([keras.Input((4,)), layer], name="shared")
        shared.compile("sgd", "mse")
    for use in (
        lambda: earlier.fit(*ROWS, verbose=0),
        lambda: earlier.predict(ROWS[0], verbose=0),
        lambda: shared.evaluate(*ROWS, verbose=0),
        lambda: earlier.train_on_batch(*ROWS),
    ):
        try:
            use()
        except RuntimeError as error:
            print("lost:", error)

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,), dtype="string"), early, keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    try:
        model.fit(tf.constant([["a"]] * 8), tf.zeros([8, 1]), verbose=0)
    except tfdist.AsynchronousTrainingError as error:
        print("refused:", error)
