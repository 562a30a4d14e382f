"""Several inputs and outputs, each with its own loss, weight and metrics."""

import keras
import numpy as np
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.3


def main(strategy, directory):
    rng = np.random.default_rng(0)
    titles = rng.integers(0, 20, size=(120, 6))
    tags = rng.integers(0, 2, size=(120, 4)).astype("float32")
    priority = tags.mean(axis=1, keepdims=True)
    department = (titles[:, 0] > 9).astype("int32") + (tags[:, 0] > 0)

    with strategy.scope():
        title = keras.Input((None,), name="title", dtype="int32")
        tag = keras.Input((4,), name="tags")
        features = layers.LSTM(8)(layers.Embedding(20, 8)(title))
        x = layers.concatenate([features, tag])
        model = keras.Model(
            inputs={"title": title, "tags": tag},
            outputs={
                "priority": layers.Dense(1, activation="sigmoid", name="priority")(x),
                "department": layers.Dense(3, name="department")(x),
            },
        )
        model.compile(
            optimizer=keras.optimizers.Adam(0.02),
            loss={
                "priority": keras.losses.MeanSquaredError(),
                "department": keras.losses.SparseCategoricalCrossentropy(
                    from_logits=True
                ),
            },
            loss_weights={"priority": 2.0, "department": 0.5},
            metrics={"priority": ["mae"], "department": ["accuracy"]},
        )
    history = model.fit(
        {"title": titles, "tags": tags},
        {"priority": priority, "department": department},
        batch_size=32,
        epochs=4,
        shuffle=False,
        verbose=0,
    ).history
    metrics = {
        "accuracy": history["department_accuracy"][-1],
        "mae": history["priority_mae"][-1],
        "loss": history["loss"][-1],
    }
    return metrics, model
