"""A whole script in the scope: several `fit`s, a schedule, and `compile` again."""

import keras
import numpy as np
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.15


def main(strategy, directory):
    with strategy.scope():
        rng = np.random.default_rng(0)
        x = rng.normal(size=(130, 6)).astype("float32")
        y = (x[:, 0] * x[:, 1] > 0).astype("float32")
        data = {"batch_size": 32, "shuffle": False, "verbose": 0}

        normalization = layers.Normalization()
        normalization.adapt(x)
        model = keras.Sequential(
            [
                keras.Input((6,)),
                normalization,
                layers.Dense(24, "relu"),
                layers.Dense(1),
            ]
        )
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        accuracy = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=[accuracy])
        model.fit(x, y, epochs=3, **data)
        model.optimizer.learning_rate = 0.03
        history = model.fit(x, y, initial_epoch=3, epochs=5, **data)
        assert history.epoch == [3, 4]

        schedule = keras.optimizers.schedules.CosineDecay(0.05, 40)
        optimizer = keras.optimizers.SGD(schedule, momentum=0.9)
        model.compile(optimizer, loss, metrics=[accuracy])
        model.fit(x, y, epochs=2, **data)

        slower = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1)
        model.compile(keras.optimizers.RMSprop(0.01), loss, metrics=[accuracy])
        model.fit(x, y, epochs=3, callbacks=[slower], validation_split=0.1, **data)
        model.save(f"{directory}/model.keras")
        found = model.evaluate(x, y, return_dict=True, verbose=0)
        return {"accuracy": found["accuracy"]}, model
