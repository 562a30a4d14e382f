"""Unbalanced classes: class weights, counting metrics, EarlyStopping."""

import keras
import numpy as np
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.25


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6)).astype("float32")
    y = (x[:, :2].sum(axis=1) > 1.8).astype("int32")[:, None]
    train_x, val_x, train_y, val_y = x[:230], x[230:], y[:230], y[230:]
    mean, std = train_x.mean(axis=0), train_x.std(axis=0)
    train_x, val_x = (train_x - mean) / std, (val_x - mean) / std
    negatives, positives = np.bincount(train_y[:, 0])

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(16, activation="relu"),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(0.02),
            loss="binary_crossentropy",
            metrics=[
                keras.metrics.FalseNegatives(name="fn"),
                keras.metrics.TruePositives(name="tp"),
                keras.metrics.Precision(name="precision"),
                keras.metrics.AUC(name="auc"),
            ],
        )
    stopping = keras.callbacks.EarlyStopping(
        monitor="val_auc", mode="max", patience=2, restore_best_weights=True
    )
    history = model.fit(
        train_x,
        train_y,
        batch_size=64,
        epochs=10,
        shuffle=False,
        callbacks=[stopping],
        validation_data=(val_x, val_y),
        class_weight={0: 1.0 / negatives, 1: 1.0 / positives},
        verbose=0,
    ).history
    best = model.evaluate(val_x, val_y, return_dict=True, verbose=0)
    assert abs(best["auc"] - max(history["val_auc"])) < 1e-3
    return {"val_auc": best["auc"]}, model
