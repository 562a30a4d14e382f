"""Transfer learning: a new head on a frozen base, then a few steps of the whole model.

tfdist local transfer.py
"""

import keras
import numpy as np

import tfdist

strategy = tfdist.ParameterServerStrategy()
rng = np.random.default_rng(0)


def bars(count, classes):
    """Images to try it with: a bar in one of so many places."""
    x, y = rng.uniform(0, 0.5, (count, 16, 16, 1)), rng.integers(0, classes, count)
    for image, place in zip(x, y, strict=True):
        image[16 * place // classes :][:2] = 1
    return x.astype("float32"), y


def compiled(model, rate):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


# The base of a task with much data. With a network, keras.applications has trained ones.
with strategy.scope():
    base = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
        ]
    )
    first = compiled(keras.Sequential([base, keras.layers.Dense(8)]), 0.01)
first.fit(*bars(4000, 8), batch_size=50, epochs=3, verbose=0)
base.save("base.keras")

# A new task with little data.
x, y = bars(300, 4)
with strategy.scope():
    base = keras.models.load_model("base.keras", compile=False)
    base.trainable = False
    model = compiled(keras.Sequential([base, keras.layers.Dense(4)]), 0.02)
model.fit(x, y, batch_size=20, epochs=10, verbose=0)
print(f"the head alone: {model.evaluate(*bars(500, 4), verbose=0)[1]:.3f}")

with strategy.scope():  # What trains has changed, so compile again, with a lower rate.
    base.trainable = True
    compiled(model, 0.001)
model.fit(x, y, batch_size=20, epochs=3, verbose=0)
print(f"all layers: {model.evaluate(*bars(500, 4), verbose=0)[1]:.3f}")
