"""A recommender: a subclassed model of two towers, embeddings, dictionaries."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SAME_WEIGHTS = True
WITHIN = 0.2


class Tower(layers.Layer):
    def __init__(self, rows, width, **kwargs):
        super().__init__(**kwargs)
        self.embedding = layers.Embedding(rows, width)
        self.dense = layers.Dense(width, activation="tanh")

    def call(self, ids):
        return self.dense(self.embedding(ids))


class Recommender(keras.Model):
    def __init__(self, users, movies):
        super().__init__()
        self.user_tower = Tower(users, 8, name="user_tower")
        self.movie_tower = Tower(movies, 8, name="movie_tower")
        self.bias = self.add_weight(shape=(), initializer="zeros", name="bias")

    def call(self, inputs):
        user = self.user_tower(inputs["user"])
        movie = self.movie_tower(inputs["movie"])
        return ops.sum(user * movie, axis=-1, keepdims=True) + self.bias


def main(strategy, directory):
    rng = np.random.default_rng(0)
    tastes, genres = rng.normal(size=(20, 3)), rng.normal(size=(15, 3))
    users, movies = rng.integers(0, 20, size=300), rng.integers(0, 15, size=300)
    ratings = np.tanh((tastes[users] * genres[movies]).sum(axis=1)).astype("float32")
    ids = {"user": users, "movie": movies}
    dataset = tf.data.Dataset.from_tensor_slices((ids, ratings)).batch(64)

    with strategy.scope():
        model = Recommender(20, 15)
        model.compile(
            keras.optimizers.Adagrad(0.2),
            loss=keras.losses.MeanSquaredError(),
            metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
        )
    early = keras.callbacks.EarlyStopping(monitor="loss", patience=3)
    history = model.fit(dataset, epochs=6, callbacks=[early], verbose=0).history
    return {"rmse": history["rmse"][-1]}, model
