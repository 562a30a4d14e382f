"""Raw strings to a class: the vocabulary is part of the model.

tfdist local text.py
"""

import keras
import numpy as np
import tensorflow as tf

import tfdist

strategy = tfdist.ParameterServerStrategy()

# Reviews to try it with: a good or a bad word among others.
rng = np.random.default_rng(0)
words = ["film", "actor", "plot", "scene", "music", "ending", "story", "camera"]
kinds = [["dull", "poor", "boring"], ["great", "lovely", "superb"]]
labels = rng.integers(0, 2, 3000)
texts = [
    " ".join(rng.permutation([*rng.choice(words, 5), rng.choice(kinds[label])]))
    for label in labels
]
texts, labels = tf.constant(texts), labels.astype("float32")

with strategy.scope():
    tokens = keras.layers.TextVectorization(max_tokens=1000, output_sequence_length=8)
    tokens.adapt(texts[:2500])
    model = keras.Sequential(
        [
            keras.Input((), dtype="string"),
            tokens,
            keras.layers.Embedding(1000, 16),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"]
    )
model.fit(texts[:2500], labels[:2500], batch_size=50, epochs=4, verbose=2)
loss, accuracy = model.evaluate(texts[2500:], labels[2500:], verbose=0)
print(f"accuracy on reviews that it has not seen: {accuracy:.3f}")
found = model.predict(tf.constant(["a superb plot", "boring music"]), verbose=0)
print(
    "a superb plot, boring music:",
    ["bad", "good"][int(found[0, 0] > 0.5)] + ",",
    ["bad", "good"][int(found[1, 0] > 0.5)],
)
model.save("reviews.keras")
