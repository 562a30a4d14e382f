"""TensorFlow Text: a tokenizer in `map`, and one in a layer of the model."""

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text as text

SAME_WEIGHTS = True
WITHIN = 0.2
# Which rows a token belongs to is not read off the operations of TensorFlow Text.
OPTIONS = {"multi_worker": {"replica_loss": "mean"}}
FLAGS = {"parameter_server": ("--import=tensorflow_text",)}

WORDS = ["good", "fine", "bad", "poor", "film", "play"]


@keras.saving.register_keras_serializable("text_ops")
class Tokens(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tokenizer = text.WhitespaceTokenizer()

    def call(self, strings):
        tokens = self.tokenizer.tokenize(strings[:, 0])
        ids = tf.strings.to_hash_bucket_fast(tokens, 50)
        return ids.to_tensor(shape=[None, 2])

    def compute_output_shape(self, input_shape):
        return (input_shape[0], 2)

    def compute_output_spec(self, strings):
        return keras.KerasTensor((strings.shape[0], 2), "int64")


def main(strategy, directory):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=64)
    texts = [
        f"{rng.choice(WORDS[:2] if n else WORDS[2:4])} {rng.choice(WORDS[4:])}"
        for n in labels
    ]
    splitter = text.UnicodeScriptTokenizer()

    def number_of_words(strings, label):
        count = splitter.tokenize(strings).row_lengths()
        return {
            "strings": strings[:, None],
            "words": tf.cast(count[:, None], "float32"),
        }, label

    data = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(16)
    data = data.map(number_of_words)
    with strategy.scope():
        strings = keras.Input((1,), dtype="string", name="strings")
        words = keras.Input((1,), name="words")
        vectors = keras.layers.Embedding(50, 4)(Tokens()(strings))
        pooled = keras.layers.Flatten()(vectors)
        output = keras.layers.Dense(1, "sigmoid")(
            keras.layers.concatenate([pooled, words])
        )
        model = keras.Model({"strings": strings, "words": words}, output)
        model.compile(
            keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"]
        )
    model.fit(data, epochs=4, verbose=0)
    results = model.evaluate(data, return_dict=True, verbose=0)
    return results, model
