"""The train steps of programs, by name: models of Keras with a step of their own."""

from typing import Any

import keras
import tensorflow as tf

MOST_STEPS = 200
"""More than any program takes, for what notes something of each step."""


class ByHand(keras.Model):
    """What Keras's step does, in words of one's own; others change a part of it."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        gradients, loss, predicted = self.gradients(x, y)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.noted(y, predicted, loss)

    def gradients(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        return tape.gradient(loss, self.trainable_variables), loss, predicted

    def noted(self, y: Any, predicted: Any, loss: Any) -> Any:
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return self.get_metrics_result()


class StepInFunction(ByHand):
    def train_step(self, data: Any) -> Any:
        return self.noted(data[1], *self.update(*data))

    @tf.function
    def update(self, x: Any, y: Any) -> Any:
        gradients, loss, predicted = self.gradients(x, y)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return predicted, loss


class Clipped(ByHand):
    def gradients(self, x: Any, y: Any) -> Any:
        gradients, *rest = super().gradients(x, y)
        return tf.clip_by_global_norm(gradients, 0.5)[0], *rest


class InCondition(ByHand):
    """Trains in each step but every third."""

    def train_step(self, data: Any) -> Any:
        gradients, loss, predicted = self.gradients(*data)

        def train() -> tf.Tensor:
            self.optimizer.apply(gradients, self.trainable_variables)
            return tf.constant(1)

        self.begun.assign_add(1)
        tf.cond(self.begun % 3 != 0, train, lambda: tf.constant(0))
        return self.noted(data[1], predicted, loss)

    def prepare(self) -> None:
        self.begun = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="begun"
        )
        self.optimizer.build(self.trainable_variables)


class InLoop(ByHand):
    """Trains twice on each batch."""

    def train_step(self, data: Any) -> Any:
        def train(i: Any) -> tuple[Any]:
            gradients, _, _ = self.gradients(*data)
            self.optimizer.apply(gradients, self.trainable_variables)
            return (i + 1,)

        tf.while_loop(lambda i: i < 2, train, (tf.constant(0),))
        predicted = self(data[0], training=False)
        return self.noted(data[1], predicted, self.compute_loss(*data, predicted))

    def prepare(self) -> None:
        self.optimizer.build(self.trainable_variables)


class Twice(keras.Model):
    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        return super().train_step(data)


class TwoOptimizers(ByHand):
    """The last layer has an optimizer of its own."""

    def train_step(self, data: Any) -> Any:
        gradients, loss, predicted = self.gradients(*data)
        weights = self.trainable_variables
        self.optimizer.apply(gradients[:-2], weights[:-2])
        self.second.apply(gradients[-2:], weights[-2:])
        return self.noted(data[1], predicted, loss)

    def prepare(self) -> None:
        self.second = keras.optimizers.Adam(0.01, epsilon=1e-3)
        # Keras builds an optimizer under a strategy for all weights.
        self.optimizer.build(self.trainable_variables[:-2])


class Penalty(ByHand):
    """Has a gradient of a gradient."""

    def gradients(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                predicted = self(x, training=True)
            slope = inner.gradient(predicted, x)
            loss = self.compute_loss(x, y, predicted) + tf.reduce_mean(slope**2)
        return tape.gradient(loss, self.trainable_variables), loss, predicted


class Totals(keras.Model):
    """Keeps sums, a maximum and a moving average, in variables of Keras and TensorFlow."""

    def train_step(self, data: Any) -> Any:
        rows = tf.shape(keras.tree.flatten(data)[0])[0]
        part = tf.cast(rows, tf.float32)
        self.total.assign_add(part)
        self.rows.assign_add(rows)
        self.largest.assign(tf.maximum(self.largest, part))
        self.average.assign(0.9 * self.average + 0.1 * part)
        return {**super().train_step(data), "rows": self.rows + 0}

    def prepare(self) -> None:
        options = {"shape": (), "initializer": "zeros", "trainable": False}
        self.total = self.add_weight(name="total", **options)
        self.largest = self.add_weight(name="largest", **options)
        self.average = self.add_weight(name="average", **options)
        self.rows = tf.Variable(0, trainable=False, name="rows")


class Noise(keras.Model):
    """Draws from `keras.random`, with a generator and with Keras's own."""

    def train_step(self, data: Any) -> Any:
        self.drawn.assign_add(keras.random.normal((3,), seed=self.generator))
        self.drawn.assign_add(keras.random.uniform((3,)))
        return super().train_step(data)

    def prepare(self) -> None:
        self.generator = keras.random.SeedGenerator(11)
        self.drawn = self.add_weight(
            shape=(3,), initializer="zeros", trainable=False, name="sum_of_noise"
        )


class Draws(keras.Model):
    """Notes what each step has drawn from `tf.random`: see `observed` in run.py."""

    def train_step(self, data: Any) -> Any:
        place = tf.one_hot(self.begun, MOST_STEPS)
        self.begun.assign_add(1)
        self.drawn.assign_add(place * tf.random.uniform([], 1.0, 2.0, seed=1))
        return super().train_step(data)

    def prepare(self) -> None:
        options = {"initializer": "zeros", "trainable": False}
        self.begun = self.add_weight(shape=(), dtype="int32", name="begun", **options)
        self.drawn = self.add_weight(shape=(MOST_STEPS,), name="drawn", **options)


class StaticRows(ByHand):
    """Reads the number of rows while it is traced."""

    def gradients(self, x: Any, y: Any) -> Any:
        rows = y.shape[0]
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            error = tf.reshape(predicted - y, [rows]) * tf.linspace(0.5, 1.5, rows)
            loss = tf.reduce_sum(error**2) / rows
        return tape.gradient(loss, self.trainable_variables), loss, predicted


class WithoutCall(keras.Model):
    """Calls its parts in its step; Keras cannot build it by its `call`."""

    def __init__(self, inputs: Any, outputs: Any) -> None:
        super().__init__()
        self.body = keras.Model(inputs, outputs)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.body(x, training=True) - y) ** 2)
        weights = self.body.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


CLASSES: dict[str, type[keras.Model]] = {
    "keras": keras.Model,
    "by_hand": ByHand,
    "in_function": StepInFunction,
    "clipped": Clipped,
    "in_condition": InCondition,
    "in_loop": InLoop,
    "twice": Twice,
    "two_optimizers": TwoOptimizers,
    "penalty": Penalty,
    "totals": Totals,
    "noise": Noise,
    "draws": Draws,
    "static_rows": StaticRows,
    "without_call": WithoutCall,
}
