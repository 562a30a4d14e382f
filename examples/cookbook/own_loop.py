"""A loop of your own: a step with a tape, which the coordinator sends to free workers.

tfdist local own_loop.py
"""

import keras
import numpy as np
import tensorflow as tf

import tfdist

strategy = tfdist.ParameterServerStrategy()

x = np.random.default_rng(0).normal(size=(4096, 8)).astype("float32")
y = x @ np.arange(8, dtype="float32")[:, None]
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096, seed=1).batch(64)

with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)


def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss


@tf.function
def train(x, y):
    return strategy.run(step, args=(x, y))


for epoch in range(6):
    losses = [strategy.coordinator.schedule(train, args=batch) for batch in dataset]
    strategy.coordinator.join()  # Waits for all of them, and raises the error of one.
    print(f"epoch {epoch}: loss {np.mean([loss.fetch() for loss in losses]):.4f}")
print(f"steps: {int(optimizer.iterations.numpy())} of {6 * len(dataset)}")
model.save("loop.keras")
