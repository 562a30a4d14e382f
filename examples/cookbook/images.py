"""Images in one folder per class, on synchronous workers.

tfdist local images.py
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

strategy = tfdist.MultiWorkerMirroredStrategy()

# Images to try it with: noise with a bright bar, upright or lying. Each worker runs
# this script, so the chief alone writes them, and the others wait.
if strategy.is_chief and not Path("photos").exists():
    rng = np.random.default_rng(0)
    for number in range(400):
        kind = ("lying", "upright")[number % 2]
        image = rng.integers(0, 100, (32, 32, 3)).astype("uint8")
        image[rng.integers(4, 26) :][:3] = 220
        image = image if kind == "lying" else image.transpose(1, 0, 2)
        path = Path("photos", kind, f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(image).numpy())
strategy.barrier()

# The seed gives all workers the same order. The batch is that of all workers together.
train, test = keras.utils.image_dataset_from_directory(
    "photos",
    image_size=(32, 32),
    batch_size=40,
    seed=1,
    validation_split=0.2,
    subset="both",
)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(8, 5, activation="relu"),
            keras.layers.MaxPooling2D(4),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.GlobalMaxPooling2D(),
            keras.layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
model.fit(train, epochs=8, verbose=2)
loss, accuracy = model.evaluate(test, verbose=0)
if strategy.is_chief:
    print(f"accuracy on images that it has not seen: {accuracy:.3f}")
