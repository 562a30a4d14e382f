"""A denoising diffusion model: a copy by moving average, noise without a seed."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SAME_WEIGHTS = False
WITHIN = 0.15


@keras.saving.register_keras_serializable(package="ddim")
def sinusoidal_embedding(x):
    speeds = ops.convert_to_tensor(2 * math.pi * np.exp(np.linspace(0, 3, 4)), x.dtype)
    return ops.concatenate([ops.sin(speeds * x), ops.cos(speeds * x)], axis=-1)


def get_network(size):
    noisy = keras.Input((size, size, 1))
    variance = keras.Input((1, 1, 1))
    embedded = layers.Lambda(sinusoidal_embedding, output_shape=(1, 1, 8))(variance)
    embedded = layers.UpSampling2D(size=size)(embedded)
    x = layers.Conv2D(8, 3, padding="same", activation="swish")(noisy)
    x = layers.Concatenate()([x, embedded])
    x = layers.BatchNormalization(center=False, scale=False)(x)
    x = layers.Conv2D(8, 3, padding="same", activation="swish")(x)
    x = layers.Conv2D(1, 1, kernel_initializer="zeros")(x)
    return keras.Model([noisy, variance], x)


class DiffusionModel(keras.Model):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.normalizer = layers.Normalization()
        self.network = get_network(size)
        self.ema_network = keras.models.clone_model(self.network)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker]

    def denoise(self, noisy, noise_rates, signal_rates, training):
        network = self.network if training else self.ema_network
        noises = network([noisy, noise_rates**2], training=training)
        return noises, (noisy - noise_rates * noises) / signal_rates

    def diffuse(self, images):
        images = self.normalizer(images, training=True)
        count = ops.shape(images)[0]
        noises = keras.random.normal((count, self.size, self.size, 1))
        angles = keras.random.uniform((count, 1, 1, 1), minval=0.2, maxval=1.4)
        noise_rates, signal_rates = ops.sin(angles), ops.cos(angles)
        noisy = signal_rates * images + noise_rates * noises
        return noisy, noises, noise_rates, signal_rates

    def train_step(self, images):
        noisy, noises, noise_rates, signal_rates = self.diffuse(images)
        with tf.GradientTape() as tape:
            predicted, _ = self.denoise(noisy, noise_rates, signal_rates, training=True)
            noise_loss = self.loss(noises, predicted)
        weights = self.network.trainable_weights
        gradients = tape.gradient(noise_loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        pairs = zip(self.network.weights, self.ema_network.weights, strict=True)
        for weight, ema_weight in pairs:
            ema_weight.assign(0.9 * ema_weight + 0.1 * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, images):
        noisy, noises, noise_rates, signal_rates = self.diffuse(images)
        predicted, _ = self.denoise(noisy, noise_rates, signal_rates, training=False)
        self.noise_loss_tracker.update_state(self.loss(noises, predicted))
        return {m.name: m.result() for m in self.metrics}

    def generate(self, count, steps=3):
        noisy = keras.random.normal((count, self.size, self.size, 1))
        for step in range(steps, 0, -1):
            angle = ops.full((count, 1, 1, 1), 1.4 * step / steps)
            rates = ops.sin(angle), ops.cos(angle)
            noises, images = self.denoise(noisy, *rates, training=False)
            angle = angle - 1.4 / steps
            noisy = ops.cos(angle) * images + ops.sin(angle) * noises
        return self.normalizer.mean + images * self.normalizer.variance**0.5

    def plot_images(self, epoch=None, logs=None):
        self.generated = ops.convert_to_numpy(self.generate(2))


def main(strategy, directory):
    rng = np.random.default_rng(0)
    images = 0.5 + 0.3 * np.sign(rng.normal(size=(120, 1, 1, 1)))
    images = (
        (images * np.linspace(0, 1, 8)[:, None, None]).repeat(8, axis=2).astype("f")
    )
    train = tf.data.Dataset.from_tensor_slices(images[:100]).batch(32).prefetch(2)
    val = tf.data.Dataset.from_tensor_slices(images[100:]).batch(20)

    with strategy.scope():
        model = DiffusionModel(size=8)
        model.normalizer.adapt(train)
        model.compile(
            optimizer=keras.optimizers.AdamW(0.01, weight_decay=1e-4),
            loss=keras.losses.mean_absolute_error,
        )
    generate = keras.callbacks.LambdaCallback(on_epoch_end=model.plot_images)
    model.fit(train, epochs=6, validation_data=val, callbacks=[generate], verbose=0)
    assert model.generated.shape == (2, 8, 8, 1)
    return {
        "val_n_loss": model.evaluate(val, return_dict=True, verbose=0)["n_loss"]
    }, model
