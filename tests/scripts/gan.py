"""A GAN whose model has no `call`, on noise without a seed."""

import keras
import numpy as np
from keras import layers

SAME_WEIGHTS = False
WITHIN = 0.35

LATENT = 4


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def train_step(self, real):
        import tensorflow as tf

        if isinstance(real, tuple):
            real = real[0]
        size = tf.shape(real)[0]
        fake = self.generator(keras.random.normal((size, LATENT)))
        both = tf.concat([fake, real], axis=0)
        labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(
            zip(tape.gradient(d_loss, weights), weights, strict=True)
        )

        noise = keras.random.normal((size, LATENT))
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(tf.zeros((size, 1)), judged)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(
            zip(tape.gradient(g_loss, weights), weights, strict=True)
        )

        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {
            "d_loss": self.d_loss_tracker.result(),
            "g_loss": self.g_loss_tracker.result(),
        }


def main(strategy, directory):
    rng = np.random.default_rng(0)
    real = rng.normal([1.0, -1.0], 0.3, size=(200, 2)).astype("float32")

    with strategy.scope():
        discriminator = keras.Sequential(
            [keras.Input((2,)), layers.Dense(16), layers.LeakyReLU(), layers.Dense(1)]
        )
        generator = keras.Sequential(
            [keras.Input((LATENT,)), layers.Dense(16, "relu"), layers.Dense(2)]
        )
        gan = GAN(discriminator, generator)
        gan.compile(
            d_optimizer=keras.optimizers.Adam(0.01),
            g_optimizer=keras.optimizers.Adam(0.01),
            loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
        )
    history = gan.fit(real, batch_size=32, epochs=6, verbose=0).history

    noise = rng.normal(size=(100, LATENT)).astype("float32")
    center = generator.predict(noise, verbose=0).mean(axis=0)
    assert len(history["g_loss"]) == 6
    distance = np.linalg.norm(center - [1.0, -1.0])
    return {"d_loss": history["d_loss"][-1], "distance": distance}, generator
