"""Losses, metrics and scripts whose result must match one process's.

    python -m launch.local --num_ps=0 --num_workers=2 tests/reader/whole_batch_cases.py \
        DIRECTORY [CASE...]

See multi_worker_cases.py, whose cases these extend; STRATEGY names another strategy.
"""

import os
import random
import sys
import traceback

import keras
import multi_worker_cases as cases
import numpy as np
import tensorflow as tf

import tfdist

CASES = {}
FIT = {**cases.FIT, "epochs": 2}


def case(function):
    CASES[function.__name__] = cases.case(function)
    return function


def functional(cls=keras.Model, **options):
    inputs = keras.Input((4,))
    dense = keras.layers.Dense(
        1, kernel_initializer=cases.ramp, kernel_regularizer=keras.regularizers.L2(0.01)
    )
    return cls(inputs, dense(inputs), **options)


def fitted(strategy, build=functional, optimizer=None, **options):
    return cases.fitted(strategy, build, optimizer, fit=FIT, **options)


def with_loss(loss):
    """A model with a custom loss, logged in every possible way."""

    class Own(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.mean = keras.metrics.Mean(name="mean_of_steps")
            self.total = keras.metrics.Sum(name="sum_of_steps")

        @property
        def metrics(self):
            return [self.mean, self.total]

        def train_step(self, batch):
            x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
            with tf.GradientTape() as tape:
                value = loss(self, x, y, self(x, training=True))
            gradients = tape.gradient(value, self.trainable_variables)
            norm = tf.linalg.global_norm(gradients)
            # Of one process's gradients, and not of a replica's part of them.
            gradients = [tf.clip_by_norm(each, 0.5) for each in gradients]
            self.optimizer.apply(gradients, self.trainable_variables)
            self.mean.update_state(value)
            self.total.update_state(value)
            return {
                "loss": self.mean.result(),
                "nested": {"total": self.total.result()},
                "last": tf.reduce_sum(value),
                "norm": norm,
            }

    return Own


def own_loss(loss):
    def run(strategy):
        model = cases.compiled(strategy, lambda: functional(with_loss(loss)), loss=None)
        x, y = cases.data(45)
        return cases.result(model, model.fit(x, y, **FIT))

    run.__name__ = loss.__name__
    case(run)
    return loss


def error_of(function):
    try:
        function()
    except Exception as error:
        return {
            "message": f"{type(error).__name__}: {error}",
            "stack": traceback.format_exc(),
        }
    return {"message": "no error", "stack": ""}


def refused(run):
    def found(strategy):
        return error_of(lambda: run(strategy))

    found.__name__ = run.__name__
    case(found)
    return run


def refused_loss(loss):
    def run(strategy):
        model = cases.compiled(strategy, lambda: functional(with_loss(loss)), loss=None)
        model.fit(*cases.data(45), **FIT)

    run.__name__ = loss.__name__
    refused(run)
    return loss


@own_loss
def mean_by_hand(model, x, y, p):
    return tf.reduce_mean(tf.square(y - p))


@own_loss
def average_of_tensorflow(model, x, y, p):
    penalty = tf.nn.scale_regularization_loss(tf.nn.l2_loss(model.weights[0]))
    return tf.nn.compute_average_loss(tf.square(y - p)[:, 0]) + 0.1 * penalty


@own_loss
def several_terms(model, x, y, p):
    own = tf.reduce_mean(tf.reduce_sum(tf.abs(p), axis=1))
    return keras.losses.Huber()(y, p) + 0.5 * own + sum(model.losses)


@own_loss
def one_value_per_example(model, x, y, p):
    return 0.1 * keras.losses.mean_squared_error(y, p)


@own_loss
def sum_by_hand(model, x, y, p):
    return 0.1 * tf.reduce_sum(tf.square(y - p))


@own_loss
def sum_and_mean(model, x, y, p):
    return 0.1 * sum_by_hand(model, x, y, p) + mean_by_hand(model, x, y, p)


@refused_loss
def root_of_a_mean(model, x, y, p):
    return tf.sqrt(tf.reduce_mean(tf.square(y - p)))


@refused_loss
def greatest_loss(model, x, y, p):
    return tf.reduce_max(tf.square(y - p)) * tf.reduce_mean(p)


@tf.custom_gradient
def clipped_for_each(p):
    return tf.identity(p), lambda given: tf.clip_by_value(given, -0.02, 0.02)


@own_loss
def gradient_function_of_rows(model, x, y, p):
    return tf.reduce_mean(tf.square(y - clipped_for_each(p))) + sum(model.losses)


@own_loss
def gradient_penalty(model, x, y, p):
    with tf.GradientTape() as tape:
        tape.watch(x)
        scores = tf.square(model(x, training=True))
    slopes = tape.gradient(scores, x)
    return tf.reduce_mean(scores) + tf.reduce_mean((tf.norm(slopes, axis=1) - 1.0) ** 2)


@case
def mean_by_ones_own_word(strategy):
    """Pads pictures in a way that is not read."""

    def loss(model, x, y, p):
        picture = tf.reshape(x * p, [-1, 2, 2, 1])
        shifted = tf.image.pad_to_bounding_box(picture, 0, 1, 2, 3)
        return tf.reduce_mean(tf.square(y - tf.reduce_sum(shifted, [1, 2])))

    model = cases.compiled(strategy, lambda: functional(with_loss(loss)), loss=None)
    x, y = cases.data(45)
    strategy.replica_loss = "mean"
    try:
        return cases.result(model, model.fit(x, y, **FIT))
    finally:
        strategy.replica_loss = None


@case
def train_step_that_is_a_function(strategy):
    cls = with_loss(mean_by_hand)
    cls.train_step = tf.function(cls.train_step)
    return fitted(strategy, lambda: functional(cls), loss=None)


@case
def sharpness_aware(strategy):
    """Moves the weights along the gradient's direction, and back."""

    class Sharp(keras.Model):
        def train_step(self, batch):
            x, y = batch
            weights = self.trainable_variables
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, weights)
            norm = tf.linalg.global_norm(gradients)
            moves = [0.05 * each / norm for each in gradients]
            for weight, move in zip(weights, moves, strict=True):
                weight.assign_add(move)
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, weights)
            for weight, move in zip(weights, moves, strict=True):
                weight.assign_sub(move)
            self.optimizer.apply(gradients, weights)
            return {"sharp_loss": loss}

    return fitted(strategy, lambda: functional(Sharp), metrics=None)


@case
def masked(strategy):
    """Sequences whose lengths differ a lot between the first and last examples."""
    ids = np.tri(13, 6, dtype="int32") + np.arange(13)[:, None] // 6
    ids[:6] *= np.tri(6, 6, dtype="int32")

    def build():
        return keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                keras.layers.Embedding(
                    5, 3, mask_zero=True, embeddings_initializer=cases.ramp
                ),
                keras.layers.Dense(1, kernel_initializer=cases.ramp),
            ]
        )

    return fitted(strategy, build, given=(ids, ids[..., None].astype("float32")))


class Positions(keras.layers.Layer):
    """Looks up rows that do not depend on the examples."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(6, 4, embeddings_initializer=cases.ramp)

    def build(self, shape):
        self.table.build()

    def call(self, x):
        return x + self.table(keras.ops.arange(keras.ops.shape(x)[1]))


@case
def embedded_positions(strategy):
    def build():
        return keras.Sequential(
            [
                keras.Input((None, 4)),
                Positions(),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1, kernel_initializer=cases.ramp),
            ]
        )

    x, y = cases.data(45)
    given = np.stack([x, x[::-1], 2 * x], axis=1), y
    return fitted(strategy, build, lambda: keras.optimizers.Adam(0.05), given=given)


class Counts(keras.layers.Layer):
    """Averages of the batch's values and of the number of its examples."""

    def __init__(self):
        super().__init__()
        self.mean = self.add_weight(shape=(4,), trainable=False, initializer="zeros")
        self.size = self.add_weight(shape=(), trainable=False, initializer="zeros")
        self.copied = self.add_weight(shape=(4,), trainable=False, initializer="zeros")

    def call(self, x):
        self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x, axis=0))
        self.size.assign(0.5 * self.size + keras.ops.sum(keras.ops.ones_like(x)))
        self.copied.assign(0.9 * self.copied + 0.1 * self.mean)
        return x


@case
def moving_sums(strategy):
    def build():
        return keras.Sequential(
            [
                keras.Input((4,)),
                Counts(),
                keras.layers.Dense(1, kernel_initializer=cases.ramp),
            ]
        )

    return fitted(strategy, build)


class Codebook(keras.layers.Layer):
    """Sums that are divided by others, each right after it was set."""

    def __init__(self):
        super().__init__()
        self.sizes = self.add_weight(shape=(), trainable=False, initializer="ones")
        self.codes = self.add_weight(shape=(4,), trainable=False, initializer="zeros")

    def call(self, x):
        large = keras.ops.sum(keras.ops.cast(x[:, 0] > 0.5, "float32"))
        self.sizes.assign(0.9 * self.sizes + 0.1 * large)
        total = keras.ops.sum(x, axis=0)
        self.codes.assign(0.9 * self.codes + 0.1 * total / self.sizes)
        return x


@case
def codebook(strategy):
    def build():
        head = keras.layers.Dense(1, kernel_initializer=cases.ramp)
        return keras.Sequential([keras.Input((4,)), Codebook(), head])

    return fitted(strategy, build, given=cases.data(33))


@refused
def ratio_in_a_weight(strategy):
    class Ratio(keras.layers.Layer):
        def build(self, shape):
            self.ratio = self.add_weight(shape=(), trainable=False, name="ratio")

        def call(self, x):
            self.ratio.assign(keras.ops.sum(x) / keras.ops.sum(x[:, 0]))
            return x

    cases.compiled(strategy, lambda: cases.dense(Ratio())).fit(*cases.data(45), **FIT)


@refused
def log_of_a_state_in_mid_step(strategy):
    class Noting(Towers):
        def train_step(self, x):
            return {**super().train_step(x), "mean": self.mean.result() + 0.0}

    model = cases.compiled(strategy, Noting, loss=None, metrics=None)
    model.fit(cases.data(41)[0], **FIT)


@case
def sum_run_eagerly(strategy):
    def build():
        return functional(with_loss(sum_by_hand))

    model = cases.compiled(strategy, build, loss=None, run_eagerly=True)
    x, y = cases.data(13)
    return cases.result(model, model.fit(x, y, **{**FIT, "epochs": 1}))


@case
def batch_run_eagerly(strategy):
    """The mean of a sum for each example, of an odd number of examples."""

    def loss(model, x, y, p):
        return tf.reduce_mean(tf.reduce_sum(tf.square(y - p), axis=1))

    def build():
        return functional(with_loss(loss))

    model = cases.compiled(strategy, build, loss=None, run_eagerly=True)
    logs = model.train_on_batch(*cases.data(13), return_dict=True)
    return cases.result(model, last=logs["last"])


class WithoutCall(keras.Model):
    """Two networks without a `call`, built by their first step."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.layers.Dense(3, kernel_initializer=cases.ramp)]
        )
        self.decoder = keras.Sequential(
            [keras.layers.Dense(4, kernel_initializer=cases.ramp)]
        )
        self.tracker = keras.metrics.Mean(name="total_loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            codes = self.encoder(x)
            rebuilt = self.decoder(codes)
            loss = tf.reduce_mean(tf.reduce_sum(tf.square(x - rebuilt), axis=1))
            loss += 0.1 * keras.ops.mean(keras.ops.square(codes))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


@case
def without_call(strategy):
    given = cases.data(45)[:1]
    return fitted(strategy, WithoutCall, loss=None, metrics=None, given=given)


class Decaying(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="decaying")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, values):
        self.total.assign(0.5 * self.total + tf.reduce_sum(values))

    def result(self):
        return self.total


class Towers(keras.Model):
    """Its call uses one tower; its metrics are logged as they are in mid-step."""

    def __init__(self):
        super().__init__()
        self.left = keras.layers.Dense(3, kernel_initializer=cases.ramp)
        self.right = keras.layers.Dense(3, kernel_initializer=cases.ramp)
        self.mean = keras.metrics.Mean()
        self.decaying = Decaying()

    @property
    def metrics(self):
        return [self.mean]

    def call(self, x):
        return self.left(x)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.left(x) - 2.0 * self.right(x)))
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        before = self.mean.total + 0.0
        self.mean.update_state(loss)
        self.decaying.update_state(x)
        return {"before": before, "decaying": self.decaying.result()}


@case
def two_towers(strategy):
    given = cases.data(41)[:1]
    return fitted(strategy, Towers, loss=None, metrics=None, given=given)


class Counting(keras.layers.Layer):
    """Counts examples in integers, in three ways."""

    def build(self, shape):
        self.counts = [
            self.add_weight(
                shape=(), dtype=dtype, initializer="zeros", trainable=False, name=name
            )
            for name, dtype in (
                ("rows", "int32"),
                ("positive", "int64"),
                ("last", "int32"),
            )
        ]

    def call(self, x):
        rows, positive, last = self.counts
        rows.assign(rows + tf.shape(x)[0])
        positive.assign_add(tf.math.count_nonzero(x > 0.5))
        last.assign(2 * tf.shape(x)[0] + 1)
        return x


@case
def synchronized_with_a_last_batch_of_one(strategy):
    def build():
        return cases.dense(keras.layers.BatchNormalization(synchronized=True))

    return fitted(strategy, build, given=cases.data(41))


@case
def integers(strategy):
    return fitted(strategy, lambda: cases.dense(Counting()))


class Drawing(keras.Sequential):
    def train_step(self, batch):
        logs = super().train_step(batch)
        numbers = tf.random.normal([tf.shape(batch[0])[0]])
        everyone = tfdist.whole_batch(numbers)
        distinct, _ = tf.unique(everyone)
        return {**logs, "distinct": tf.size(distinct) / tf.size(everyone)}


@case
def numbers_with_a_seed(strategy):
    """`tf.random` with a seed draws other numbers on each replica."""
    tf.random.set_seed(3)
    layers = [keras.layers.Input((4,)), keras.layers.Dense(1)]
    model = cases.compiled(strategy, lambda: Drawing(layers))
    history = model.fit(*cases.data(45), **FIT)
    return {"distinct": history.history["distinct"], "hash": ""}


@case
def within_the_scope(strategy):
    """A whole script: every way to save and load, inside `fit` and outside."""
    mine = cases.own_directory(strategy, "within")
    x, y = cases.data(40)
    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{mine}/best.keras", save_best_only=True),
        keras.callbacks.ModelCheckpoint(
            f"{mine}/each.weights.h5", save_weights_only=True, save_freq=2
        ),
        keras.callbacks.BackupAndRestore(f"{mine}/backup", delete_checkpoint=False),
        keras.callbacks.EarlyStopping(restore_best_weights=True),
    ]
    options = {**FIT, "validation_data": (x, y), "callbacks": callbacks}
    with strategy.scope():
        model = cases.small(strategy)
        model.fit(x, y, **options)
        again = cases.small(strategy)
        again.fit(x, y, **{**options, "epochs": 3})
        model.save(f"{mine}/model.keras")
        keras.saving.save_model(model, f"{mine}/other.keras")
        keras.saving.save_weights(model, f"{mine}/all.weights.h5")
        model.export(f"{mine}/export", verbose=False)
        predicted = model.predict(x, verbose=0)
        model.evaluate(x, y, verbose=0)
        strategy.barrier()
        theirs = f"{cases.DIRECTORY}/within-files-0"
        loaded = keras.models.load_model(f"{theirs}/model.keras")
        loaded.load_weights(f"{theirs}/all.weights.h5")
    same = np.array_equal(loaded.predict(x, verbose=0), predicted)
    return cases.result(
        again,
        steps_of_again=again.optimizer.iterations.numpy(),
        same=same,
        files=sorted(os.listdir(mine)),
    )


@refused
def gradients_by_other_means(strategy):
    class Own(keras.Model):
        def train_step(self, batch):
            x, y = batch
            loss = tf.reduce_mean(tf.square(self(x) - y))
            values = [each.value for each in self.trainable_variables]
            self.optimizer.apply(tf.gradients(loss, values), self.trainable_variables)
            return {"loss": loss}

    fitted(strategy, lambda: functional(Own), loss=None)


class Queue(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.kept = self.add_weight(shape=(5, 4), trainable=False, name="kept")

    def call(self, x):
        self.kept.assign(keras.ops.concatenate([x, self.kept])[:5])
        return x


@refused
def queue_of_examples(strategy):
    def build():
        return keras.Sequential([keras.Input((4,)), Queue(), keras.layers.Dense(1)])

    cases.compiled(strategy, build).fit(*cases.data(45), **FIT)


def in_batches_of_8():
    data = tf.data.Dataset.from_tensor_slices(cases.data(40))
    return data.batch(8, drop_remainder=True)


class Noting(keras.layers.Layer):
    """Notes the mean of its inputs in a variable of TensorFlow's."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def build(self, shape):
        self.noted = tf.Variable(0.0, trainable=False, **self.options)

    def call(self, x):
        self.note(tf.reduce_mean(x))
        return x

    def note(self, mean):
        self.noted.assign_add(mean)


class NotingInAFunction(Noting):
    note = tf.function(Noting.note)


def noting(strategy, layer, **options):
    def build():
        return cases.dense(layer(**options))

    model = cases.compiled(strategy, build)
    # The last batch is one example, of which one replica has none.
    history = model.fit(*cases.data(41), **FIT)
    return cases.result(model, history, noted=model.layers[1].noted.numpy())


@case
def mean_in_a_plain_variable(strategy):
    mean = tf.VariableAggregation.MEAN
    return noting(strategy, Noting, aggregation=mean)


def noted_on_read(strategy, aggregation, write):
    class Noting(keras.Model):
        def train_step(self, batch):
            write(self.noted, batch[0])
            return super().train_step(batch)

    def build():
        model = functional(Noting)
        synchronization = tf.VariableSynchronization.ON_READ
        options = {"synchronization": synchronization, "aggregation": aggregation}
        model.noted = tf.Variable(0.0, trainable=False, **options)
        return model

    model = cases.compiled(strategy, build)
    # The last batch is one example, of which one replica has none.
    history = model.fit(*cases.data(41), **FIT)
    return cases.result(model, history, noted=model.noted.numpy())


@case
def sum_in_a_variable_that_a_read_adds_up(strategy):
    return noted_on_read(
        strategy,
        tf.VariableAggregation.SUM,
        lambda noted, x: noted.assign_add(tf.reduce_sum(x)),
    )


@refused
def mean_in_a_variable_that_a_read_combines(strategy):
    noted_on_read(
        strategy,
        tf.VariableAggregation.MEAN,
        lambda noted, x: noted.assign(tf.reduce_mean(x)),
    )


@refused
def own_mean_in_a_plain_variable(strategy):
    noting(strategy, Noting)


class DecayingNote(Noting):
    def note(self, mean):
        self.noted.assign(0.9 * self.noted + mean)


@refused
def decaying_sum_in_a_plain_variable(strategy):
    noting(strategy, DecayingNote, aggregation=tf.VariableAggregation.SUM)


class CountsAndRoots(keras.metrics.Metric):
    """Has two weights of int32, which TensorFlow keeps on the host, and one of float32."""

    def __init__(self, name="counts"):
        super().__init__(name=name)
        self.steps, self.rows, self.roots = (
            self.add_weight(shape=(), initializer="zeros", dtype=dtype, name=name)
            for name, dtype in zip("srq", ("int32", "int32", "float32"), strict=True)
        )

    def update_state(self, y, p, sample_weight=None):
        self.steps.assign_add(1)
        self.rows.assign_add(keras.ops.shape(y)[0])
        self.roots.assign_add(keras.ops.sqrt(keras.ops.mean(keras.ops.square(y - p))))

    def result(self):
        counts = keras.ops.cast(10 * self.steps + self.rows, "float32")
        return counts + self.roots


@case
def metric_of_integers_and_floats(strategy):
    with strategy.scope():
        metric = CountsAndRoots()
    return fitted(strategy, given=cases.data(41), metrics=[metric])


@case
def weights_of_bfloat16(strategy):
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = cases.compiled(strategy)
        before = [each.astype("float32") for each in model.get_weights()]
        model.fit(*cases.data(40), **FIT)
        # With 8 bits, the order in which replicas add up shows in the weights.
        moved = [
            float(np.abs(each.astype("float32") - old).max() > 0)
            for each, old in zip(model.get_weights(), before, strict=True)
        ]
        dtypes = {each.dtype for each in model.weights}
        found = cases.result(model)
        return {"hash": found["hash"], "moved": moved, "all": dtypes == {"bfloat16"}}
    finally:
        keras.config.set_dtype_policy("float32")


@refused
def plain_variable_from_a_graph(strategy):
    class Scaled(keras.layers.Layer):
        def build(self, shape):
            self.scale = tf.Variable(0.5 * tf.ones(shape[1:]))

        def call(self, x):
            return x * self.scale

    class Stack(keras.Model):
        def __init__(self):
            super().__init__()
            self.scaled, self.dense = Scaled(), keras.layers.Dense(1)

        def call(self, x):
            return self.dense(self.scaled(x))

    cases.compiled(strategy, Stack).fit(*cases.data(), **FIT)


@refused
def normalized_behind_a_mask(strategy):
    def build():
        return keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(9, 3, mask_zero=True),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )

    x, y = cases.data(40)
    cases.compiled(strategy, build).fit((8 * x).astype("int32"), y, **FIT)


@refused
def mean_in_a_plain_variable_in_a_function(strategy):
    mean = tf.VariableAggregation.MEAN
    noting(strategy, NotingInAFunction, aggregation=mean)


class NoisyOfAShape(WithoutCall):
    def train_step(self, batch):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        noise = keras.random.normal((x.shape[0], 4))
        return super().train_step(x + 0.01 * noise)


@refused
def noise_of_a_shape_without_call(strategy):
    model = cases.compiled(strategy, NoisyOfAShape, loss=None, metrics=None)
    model.fit(in_batches_of_8().map(lambda x, y: x), verbose=0)


@refused
def batch_of_a_shape(strategy):
    """`train_on_batch` has a fixed size in one process, too."""
    model = cases.compiled(strategy, NoisyOfAShape, loss=None, metrics=None)
    model.train_on_batch(cases.data(8)[0])


def noise_for_8(model, x, y, p):
    return tf.reduce_mean(tf.square(y - model(x + tf.random.normal((8, 4)))))


@refused
def noise_of_a_fixed_size(strategy):
    own = with_loss(noise_for_8)
    model = cases.compiled(strategy, lambda: functional(own), loss=None)
    model.fit(in_batches_of_8(), verbose=0)


@refused
def noise_of_a_fixed_size_for_each_part(strategy):
    """Nothing is read from the step: its shapes do not match once it runs."""
    own = with_loss(noise_for_8)
    model = cases.compiled(strategy, lambda: functional(own), loss=None)
    strategy.whole_batch = False
    try:
        model.fit(in_batches_of_8(), verbose=0)
    finally:
        strategy.whole_batch = True


def my_own_callback(batch, logs):
    tf.debugging.assert_equal(1, 2)


@refused
def callback_that_fails(strategy):
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=my_own_callback)
    cases.compiled(strategy).fit(*cases.data(), **FIT, callbacks=[callback])


WORDS = [f"word{i}" for i in range(20)]


def shuffled_words():
    """The words in an order that differs per process."""
    words = list(WORDS)
    random.Random(os.getpid()).shuffle(words)
    return words


@refused
def texts_of_any_length(strategy):
    vectorize = keras.layers.TextVectorization()
    vectorize.adapt(WORDS)

    def build():
        layers = [vectorize, keras.layers.Embedding(30, 2)]
        pooling = keras.layers.GlobalAveragePooling1D()
        inputs = keras.Input((), dtype="string")
        return keras.Sequential([inputs, *layers, pooling, keras.layers.Dense(1)])

    cases.compiled(strategy, build).fit(text_data().batch(4), verbose=0)


def text_model(strategy, words):
    vectorize = keras.layers.TextVectorization(output_sequence_length=2)
    vectorize.adapt(words)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((), dtype="string"),
                vectorize,
                keras.layers.Embedding(30, 2),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    return model, vectorize


def text_data():
    return tf.data.Dataset.from_tensor_slices((WORDS, np.ones((20, 1), "float32")))


@refused
def vocabulary_in_the_model(strategy):
    # One word twice, and the rest as often as each other: their order is that of `adapt`.
    words = shuffled_words()
    text_model(strategy, words[:10])[0].fit(text_data().batch(4), verbose=0)


@refused
def vocabulary_in_the_dataset(strategy):
    # Drawn at random, they would now and then give the first batch the same numbers.
    half = slice(0, 10) if strategy.extended.worker_index == 0 else slice(10, 20)
    _, vectorize = text_model(strategy, WORDS[half])
    dataset = text_data().batch(4).map(lambda x, y: (vectorize(x), y)).shuffle(5)
    model = cases.compiled(strategy, lambda: cases.dense(inputs=2))
    model.fit(dataset, verbose=0)


@refused
def the_same_vocabulary(strategy):
    model, vectorize = text_model(strategy, WORDS)
    model.fit(text_data().batch(4), verbose=0)
    dataset = text_data().batch(4).map(lambda x, y: (vectorize(x), y)).shuffle(5)
    model = cases.compiled(strategy, lambda: cases.dense(inputs=2))
    model.fit(dataset, verbose=0)


@refused
def shuffled_arrays(strategy):
    x, y = cases.data(40)
    order = np.random.RandomState(os.getpid() % 2**31).permutation(40)
    cases.compiled(strategy).fit(x[order], y[order], **FIT)


@refused
def augmented_images(strategy):
    """Random augmentation may differ between workers: the examples are the same."""

    def augment(x, y):
        return x + tf.random.normal(tf.shape(x), stddev=0.01), y

    dataset = tf.data.Dataset.from_tensor_slices(cases.data(40)).batch(8).map(augment)
    cases.compiled(strategy).fit(dataset, verbose=0)


@refused
def another_activation(strategy):
    name = ("relu", "tanh")[strategy.extended.worker_index]
    layer = keras.layers.Dense(3, activation=name)
    cases.compiled(strategy, lambda: cases.dense(layer)).fit(*cases.data(), **FIT)


@refused
def other_epochs(strategy):
    epochs = 2 + strategy.extended.worker_index
    cases.compiled(strategy).fit(*cases.data(), **{**FIT, "epochs": epochs})


# The last one: collectives that differ leave none that could be used.
@refused
def another_shape(strategy):
    layer = keras.layers.Dense(3 + strategy.extended.worker_index, name="uneven")
    cases.compiled(strategy, lambda: cases.dense(layer)).fit(*cases.data(), **FIT)


CASES["another_shape"].is_last = True


if __name__ == "__main__":
    cases.main(*sys.argv[1:])
