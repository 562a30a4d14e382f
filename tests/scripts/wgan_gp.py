"""A Wasserstein GAN with a gradient penalty; its noise comes with the data."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.5


class WGAN(keras.Model):
    def __init__(self, critic, generator, critic_steps=2, penalty_weight=10.0):
        super().__init__()
        self.critic = critic
        self.generator = generator
        self.critic_steps = critic_steps
        self.penalty_weight = penalty_weight

    def compile(self, c_optimizer, g_optimizer):
        super().compile()
        self.c_optimizer = c_optimizer
        self.g_optimizer = g_optimizer

    def gradient_penalty(self, real, fake):
        between = (real + fake) / 2
        with tf.GradientTape() as tape:
            tape.watch(between)
            judged = self.critic(between, training=True)
        gradient = tape.gradient(judged, between)
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradient), axis=1) + 1e-8)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, data):
        real, noise = data
        for _ in range(self.critic_steps):
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                c_loss = tf.reduce_mean(self.critic(fake, training=True))
                c_loss -= tf.reduce_mean(self.critic(real, training=True))
                c_loss += self.penalty_weight * self.gradient_penalty(real, fake)
            weights = self.critic.trainable_variables
            gradients = tape.gradient(c_loss, weights)
            self.c_optimizer.apply_gradients(zip(gradients, weights, strict=True))

        with tf.GradientTape() as tape:
            fake = self.generator(noise, training=True)
            g_loss = -tf.reduce_mean(self.critic(fake, training=True))
        weights = self.generator.trainable_variables
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"c_loss": c_loss, "g_loss": g_loss}


def main(strategy, directory):
    rng = np.random.default_rng(0)
    real = rng.normal([1.0, -1.0], 0.3, size=(100, 2)).astype("float32")
    noise = rng.normal(size=(100, 4)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((real, noise)).batch(32)

    with strategy.scope():
        critic = keras.Sequential(
            [keras.Input((2,)), layers.Dense(8, "tanh"), layers.Dense(1)]
        )
        generator = keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(2)]
        )
        gan = WGAN(critic, generator)
        gan.compile(keras.optimizers.SGD(0.02), keras.optimizers.SGD(0.02))
    gan.fit(dataset, epochs=4, verbose=0)

    center = generator.predict(noise, verbose=0).mean(axis=0)
    return {"distance": np.linalg.norm(center - [1.0, -1.0])}, critic, generator
