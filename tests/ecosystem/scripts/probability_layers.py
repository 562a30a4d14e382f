"""TensorFlow Probability: a likelihood as the loss, and a sample within the step."""

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

SAME_WEIGHTS = False  # Workers draw samples of their own.
WITHIN = 0.5
# What a sample is computed from is not read off its operations.
OPTIONS = {"multi_worker": {"replica_loss": "mean"}}


def negative_log_likelihood(y, parameters):
    location, scale = tf.split(parameters, 2, axis=-1)
    normal = tfp.distributions.Normal(location, 0.1 + tf.nn.softplus(scale))
    return -tf.reduce_sum(normal.log_prob(y), axis=-1)


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.layers.Dense(4)
        self.decoder = keras.layers.Dense(8)

    def call(self, x):
        location, scale = tf.split(self.encoder(x), 2, axis=-1)
        posterior = tfp.distributions.Normal(location, 1e-3 + tf.nn.softplus(scale))
        prior = tfp.distributions.Normal(0.0, 1.0)
        divergence = tfp.distributions.kl_divergence(posterior, prior)
        self.add_loss(0.01 * tf.reduce_mean(tf.reduce_sum(divergence, axis=-1)))
        return self.decoder(posterior.sample())


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(64, 2)) @ rng.normal(size=(2, 4))).astype("float32")
    with strategy.scope():
        model = Autoencoder()
        model.compile(keras.optimizers.Adam(0.05), negative_log_likelihood)
    model.fit(x, x, batch_size=16, epochs=60, shuffle=False, verbose=0)
    code = np.split(model.encoder(x).numpy(), 2, axis=-1)[0]
    error = np.split(model.decoder(code).numpy(), 2, axis=-1)[0] - x
    return {"error": np.mean(error**2) / np.var(x)}, model
