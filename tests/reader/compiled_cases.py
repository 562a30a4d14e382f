"""Compiled losses and metrics that do not separate over examples, and `whole_batch`.

    python -m launch.local --num_ps=0 --num_workers=2 tests/reader/compiled_cases.py \
        DIRECTORY [CASE...]

See multi_worker_cases.py, whose cases these extend; STRATEGY names another strategy.
"""

import sys

import keras
import multi_worker_cases as cases
import numpy as np
import tensorflow as tf
from keras import ops

import tfdist

CASES = {}
FIT = {"batch_size": 16, "epochs": 2}


def case(function):
    CASES[function.__name__] = cases.case(function)
    return function


def fitted(strategy, build=cases.dense, rows=45, fit=None, data=None, **options):
    """Trains on batches of 16, 16 and 13, or a last one of a single example."""
    given = data or cases.data(rows)
    fit = {**FIT, "validation_data": given, **(fit or {})}
    options = {"metrics": None, **options}
    return cases.fitted(strategy, build, given=given, fit=fit, **options)


def in_batch_softmax(y, p):
    """Each example against all others, normalized by the batch's own statistics."""
    p = (p - ops.mean(p, axis=0)) / (ops.std(p, axis=0) + 1.0)
    similarities = ops.matmul(p, ops.transpose(p + y))
    return -ops.mean(ops.diagonal(ops.log_softmax(similarities, axis=1)))


def over_the_greatest(y, p):
    """One value per example, each of which depends on the whole batch."""
    return ops.mean(ops.square(y - p), axis=-1) / ops.max(ops.abs(y))


def supervised_contrastive(y, p):
    """One value per example: those of its class against all."""
    p = p / (ops.norm(p, axis=1, keepdims=True) + 1.0)
    log_probabilities = ops.log_softmax(ops.matmul(p, ops.transpose(p)), axis=1)
    y = ops.reshape(y, (-1, 1))
    same = ops.cast(ops.equal(y, ops.transpose(y)), p.dtype)
    return -ops.sum(same * log_probabilities, axis=1) / ops.sum(same, axis=1)


@case
def classes_with_weights(strategy):
    x, y = cases.data(45)
    labels = (y[:, 0] > y.mean()).astype("int32")
    return fitted(
        strategy,
        lambda: cases.dense(outputs=3),
        loss=supervised_contrastive,
        data=(x, labels),
        fit={"class_weight": {0: 1.0, 1: 3.0}, "validation_data": None},
        metrics=None,
    )


@case
def contrastive_with_a_last_batch_of_one(strategy):
    options = {"steps_per_execution": 2, "metrics": [in_batch_softmax]}
    return fitted(strategy, loss=in_batch_softmax, rows=33, **options)


@case
def contrastive_run_eagerly(strategy):
    fit = {"batch_size": 4, "epochs": 1}
    options = {"run_eagerly": True, "metrics": [in_batch_softmax]}
    return fitted(strategy, loss=in_batch_softmax, rows=10, fit=fit, **options)


@case
def one_batch_at_a_time(strategy):
    model = cases.compiled(strategy, loss=in_batch_softmax, metrics=[in_batch_softmax])
    x, y = cases.data(21)
    losses = [
        model.train_on_batch(x[i : i + 7], y[i : i + 7], return_dict=True)["loss"]
        for i in (0, 7, 14)
    ]
    return cases.result(model, losses=np.array(losses, "float32"))


@case
def own_data(strategy):
    """Each worker has different data, and one has less than the other."""
    model = cases.compiled(strategy, loss=in_batch_softmax)
    if isinstance(strategy, cases.Alone):
        loss = cases.train_as_one_on_own_data(model)
        return cases.result(model, loss=loss)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    dataset = cases.own_rows(strategy).batch(8).with_options(options)
    history = model.fit(dataset, verbose=0)
    return cases.result(model, loss=history.history["loss"][0])


@case
def examples_without_an_axis(strategy):
    """Where an example has one number, Keras's own losses combine the batch's axis."""

    def build():
        model = cases.dense()
        return keras.Model(model.inputs, ops.squeeze(model.outputs[0], axis=1))

    x, y = cases.data(45)
    weights = np.linspace(0, 2, len(x)).astype("float32")
    return fitted(
        strategy,
        build,
        data=(x, y[:, 0]),
        metrics=["mse"],
        fit={"sample_weight": weights},
    )


class Weighted(keras.losses.Loss):
    """Weights of its own, and noise that is the same in one process."""

    def __init__(self):
        super().__init__(name="weighted")
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, y, p):
        noise = keras.random.normal(ops.shape(p), seed=self.seeds)
        return ops.mean(ops.square(y - p + 0.1 * noise), axis=-1) / ops.max(y)


@case
def several_outputs(strategy):
    def build():
        x = keras.Input((4,))
        shared = keras.layers.Dense(
            6, kernel_initializer=cases.ramp, kernel_regularizer="l2"
        )(x)
        return keras.Model(
            x,
            {
                name: keras.layers.Dense(1, kernel_initializer=cases.ramp, name=name)(
                    shared
                )
                for name in ("p", "q", "r")
            },
        )

    x, y = cases.data(45)
    weights = np.linspace(0, 2, len(x)).astype("float32")
    with strategy.scope():
        weighted = Weighted()
    return fitted(
        strategy,
        build,
        loss={"p": in_batch_softmax, "q": "mae", "r": weighted},
        loss_weights={"p": 1.0, "q": 0.5, "r": 2.0},
        metrics={"p": [in_batch_softmax], "q": ["mse"]},
        weighted_metrics={"q": ["mse"], "r": [over_the_greatest]},
        data=(x, {"p": y, "q": -y, "r": y}),
        optimizer=lambda: keras.optimizers.SGD(0.01),
        fit={"sample_weight": {"p": weights, "q": weights, "r": weights}},
    )


class Penalty(keras.layers.Layer):
    """A sum over examples and a mean of them, in `add_loss`."""

    def call(self, x):
        self.add_loss(0.01 * ops.sum(ops.square(x)))
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        return x


@case
def beside_added_losses(strategy):
    return fitted(strategy, lambda: cases.dense(Penalty()), loss=in_batch_softmax)


@case
def masked(strategy):
    ids = np.tri(45, 6, dtype="int32") + np.arange(45)[:, None] // 20
    ids[:6] *= np.tri(6, 6, dtype="int32")

    def build():
        embedding = keras.layers.Embedding(
            5, 3, mask_zero=True, embeddings_initializer=cases.ramp
        )
        head = keras.layers.Dense(1, kernel_initializer=cases.ramp)
        return keras.Sequential([keras.Input((6,), dtype="int32"), embedding, head])

    y = ids[..., None].astype("float32") + 1.0
    metrics = [over_the_greatest]
    return fitted(
        strategy, build, loss=over_the_greatest, metrics=metrics, data=(ids, y)
    )


class Greatest(keras.metrics.Metric):
    """Reads its state, which is not 0 after a reset."""

    def __init__(self):
        super().__init__(name="greatest")
        self.value = self.add_variable((), keras.initializers.Constant(-6.0))
        self.least = self.add_variable((), keras.initializers.Constant(1.5))
        self.steps = self.add_variable((), "zeros", dtype="int32")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(ops.maximum(self.value, ops.max(y_true)))
        self.least.assign(ops.minimum(self.least, ops.min(y_pred)))
        self.steps.assign_add(1)

    def reset_state(self):
        self.value.assign(-6.0)
        self.least.assign(1.5)
        self.steps.assign(0)

    def result(self):
        return {
            "greatest": self.value + 0.0,
            "least": self.least + 0.0,
            "steps": self.steps + 0,
        }


@case
def metric_of_a_maximum(strategy):
    with strategy.scope():
        metric = Greatest()
    found = fitted(strategy, metrics=[metric], rows=33)
    return {**found, **{f"now_{k}": float(v) for k, v in metric.result().items()}}


def two_sided(model, x, y):
    """Own rows against the whole batch's."""
    p = model(x, training=True)
    everyone = tfdist.whole_batch(p)
    near = tf.reduce_logsumexp(tf.matmul(p, everyone, transpose_b=True), axis=1)
    spread = tf.math.reduce_std(everyone) / tf.reduce_max(tfdist.whole_batch(y))
    return tf.reduce_mean(near) + spread + tf.reduce_mean(tf.square(y - p))


class OwnStep(keras.Model):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = two_sided(self, x, y)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "norm": tf.linalg.global_norm(gradients)}


class PenalizedStep(keras.Model):
    """The outer tape differentiates the gradient of a loss of the whole batch."""

    def train_step(self, batch):
        x, y = batch
        weights = self.trainable_variables
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
                loss += 0.1 * two_sided(self, x, y)
            gradients = tape.gradient(loss, weights)
            total = loss + 0.1 * sum(tf.reduce_sum(each**2) for each in gradients)
        self.optimizer.apply(outer.gradient(total, weights), weights)
        return {"loss": loss, "total": total}


def with_step(compute):
    """A model whose `train_step` computes a loss by hand."""

    class ByHand(keras.Model):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss, logs = compute(y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"value": loss, **logs}

    return ByHand


def contrastive_step(y, p):
    return in_batch_softmax(y, p), {}


def greatest_step(y, p):
    return tf.reduce_max(tf.square(y - p)), {}


@tf.custom_gradient
def centered_backwards(p):
    return tf.identity(p), lambda given: given - tf.reduce_mean(given, 0)


def centered_gradient_step(y, p):
    return tf.reduce_mean(tf.square(y - centered_backwards(p))), {}


def greatest_log_step(y, p):
    return tf.reduce_mean(tf.square(y - p)), {"greatest": tf.reduce_max(p)}


def own_step(strategy, cls, **options):
    def build():
        inner = cases.dense()
        return cls(inner.inputs, inner.outputs)

    return fitted(strategy, build, fit={"validation_data": None}, **options)


@case
def step_of_ones_own(strategy):
    return own_step(strategy, OwnStep, rows=34)


@case
def penalty_on_the_gradient(strategy):
    return own_step(strategy, PenalizedStep, loss=in_batch_softmax)


@case
def mixed_precision(strategy):
    """In float16, compared roughly."""

    keras.config.set_dtype_policy("mixed_float16")
    try:
        return fitted(strategy, loss=in_batch_softmax, rows=32)
    finally:
        keras.config.set_dtype_policy("float32")


def error_of(strategy, train=fitted, **options):
    try:
        train(strategy, **options)
    except Exception as error:
        return {"message": f"{type(error).__name__}: {error}"}
    return {"message": "no error"}


def refused_step(step):
    def run(strategy):
        return error_of(strategy, own_step, cls=with_step(step))

    run.__name__ = step.__name__
    case(run)


for each in (contrastive_step, centered_gradient_step, greatest_log_step):
    refused_step(each)


@case
def above_the_limit(strategy):
    strategy.whole_batch_bytes = 100
    return error_of(strategy, loss=in_batch_softmax)


CASES["above_the_limit"].is_last = True


@case
def on_parts(strategy):
    """As the user asked for: each replica contrasts its own examples."""
    strategy.whole_batch = False
    try:
        found = fitted(strategy, loss=in_batch_softmax, rows=32)
        step = own_step(strategy, with_step(contrastive_step), rows=32)
        greatest = own_step(strategy, with_step(greatest_step), rows=32)
    finally:
        strategy.whole_batch = True
    return {**found, "in_a_step": step["value"], "greatest": greatest["value"]}


@case
def two_rows_for_each_example(strategy):
    def build():
        x = keras.Input((4,))
        p = keras.layers.Dense(1, kernel_initializer=cases.ramp)(x)
        return keras.Model(x, ops.concatenate([p, -p], axis=0))

    def both(y, p):
        rows = ops.shape(y)[0]
        return ops.mean(ops.square(y - p[:rows]) + ops.square(y + p[rows:]))

    return error_of(strategy, build=build, loss=both, rows=32)


if __name__ == "__main__":
    cases.main(*sys.argv[1:])
