"""A variational autoencoder without `call`: noise without a seed, sums as losses."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SAME_WEIGHTS = False
WITHIN = 0.08  # An image without a code has .25.


class Sampling(layers.Layer):
    def call(self, inputs):
        mean, log_var = inputs
        epsilon = keras.random.normal(ops.shape(mean))
        return mean + ops.exp(0.5 * log_var) * epsilon


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(
            name="reconstruction_loss"
        )
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [
            self.total_loss_tracker,
            self.reconstruction_loss_tracker,
            self.kl_loss_tracker,
        ]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(data)
            squared = tf.square(data - self.decoder(z))
            reconstruction_loss = tf.reduce_mean(tf.reduce_sum(squared, axis=(1, 2, 3)))
            kl_loss = -0.5 * (1 + log_var - tf.square(mean) - tf.exp(log_var))
            kl_loss = tf.reduce_mean(tf.reduce_sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + kl_loss
        gradients = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_weights, strict=True)
        )
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {metric.name: metric.result() for metric in self.metrics}


def main(strategy, directory):
    rng = np.random.default_rng(0)
    shapes = rng.integers(0, 2, size=(4, 8, 8, 1))
    images = shapes[rng.integers(0, 4, size=150)].astype("float32")

    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(inputs)
        x = layers.Flatten()(x)
        mean, log_var = layers.Dense(2)(x), layers.Dense(2)(x)
        encoder = keras.Model(inputs, [mean, log_var, Sampling()([mean, log_var])])
        decoder = keras.Sequential(
            [
                keras.Input((2,)),
                layers.Dense(4 * 4 * 8, activation="relu"),
                layers.Reshape((4, 4, 8)),
                layers.Conv2DTranspose(1, 3, strides=2, padding="same"),
            ]
        )
        vae = VAE(encoder, decoder)
        vae.compile(optimizer=keras.optimizers.Adam(0.01))
    history = vae.fit(images, epochs=8, batch_size=32, verbose=0).history

    mean, _, _ = encoder.predict(images, verbose=0)
    error = np.square(decoder.predict(mean, verbose=0) - images).mean()
    return {"error": error, "loss": history["loss"][-1] / images[0].size}, vae
