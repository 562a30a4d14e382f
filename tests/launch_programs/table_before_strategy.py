"""Trains with a table that this process made before it joined its cluster."""

import keras
import tensorflow as tf

early = keras.layers.StringLookup(
    vocabulary=["a", "b"], output_mode="one_hot", name="early"
)

if __name__ == "__main__":
    import tfdist

    with tfdist.ParameterServerStrategy().scope():
        model = keras.Sequential(
            [keras.Input((1,), dtype="string"), early, keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    try:
        model.fit(tf.constant([["a"]] * 8), tf.zeros([8, 1]), verbose=0)
    except tfdist.AsynchronousTrainingError as error:
        print("refused:", error)
