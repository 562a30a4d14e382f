"""Cases for synchronous strategies, run on a cluster and in one process to compare.

    python -m launch.local --num_ps=0 --num_workers=2 tests/support/multi_worker_cases.py \
        DIRECTORY [CASE...]

Each case returns numbers and arrays by name, with a hash of all variables under "hash".
Every worker writes its own: see case_jobs.py.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import case_jobs
import keras
import numpy as np
import tensorflow as tf
from deadline import DEADLINE

from tf_config import contract

CASES = {}
DIRECTORY = ""


class Alone:
    """Stands in for the strategy in the single process."""

    is_chief = True
    num_replicas = 1

    def scope(self):
        return contextlib.nullcontext()


def case(function):
    CASES[function.__name__] = function
    return function


def data(rows=45, columns=4, seed=0):
    x = np.random.RandomState(seed).rand(rows, columns).astype("float32")
    return x, (x.sum(1, keepdims=True) + x[:, :1] ** 2).astype("float32")


def dense(*layers, inputs=4, outputs=1):
    return keras.Sequential(
        [
            keras.layers.Input((inputs,)),
            keras.layers.Dense(8, activation="tanh", kernel_initializer=ramp),
            *layers,
            keras.layers.Dense(outputs, kernel_initializer=ramp),
        ]
    )


def ramp(shape, dtype=None):
    values = np.sin(np.arange(np.prod(shape), dtype="float32")).reshape(shape)
    return tf.cast(values * 0.5, dtype or "float32")


def compiled(strategy, build=dense, optimizer=None, **options):
    with strategy.scope():
        model = build()
        make = optimizer or (lambda: keras.optimizers.SGD(0.1, momentum=0.9))
        model.compile(make(), **{"loss": "mse", "metrics": ["mae"], **options})
    return model


def state(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(each.numpy()) for each in variables]


def result(model, history=None, **more):
    arrays = state(model)
    digest = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
    logs = {k: np.array(v) for k, v in (history.history if history else {}).items()}
    weights = {f"w{i}": a for i, a in enumerate(model.get_weights())}
    steps = model.optimizer.iterations.numpy()
    return {"hash": digest, "steps": steps, **logs, **weights, **more}


FIT = {"batch_size": 8, "shuffle": False, "verbose": 0}


def fitted(strategy, build=dense, optimizer=None, given=None, fit=None, **options):
    """Trains on what is given, or on 45 rows, in batches of 8."""
    model = compiled(strategy, build, optimizer, **options)
    history = model.fit(*(given or data()), **{**FIT, **(fit or {})})
    return result(model, history)


@case
def uneven(strategy):
    """Batches of 16, 16 and 13; a scheduled rate, clipping, decay."""

    def optimizer():
        rate = keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.7)
        return keras.optimizers.AdamW(rate, global_clipnorm=0.5, weight_decay=0.01)

    model = compiled(strategy, optimizer=optimizer)
    x, y = data()
    history = model.fit(
        x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, validation_data=(x, y)
    )
    return result(model, history, predictions=model.predict(x, verbose=0))


@case
def last_batch_of_one(strategy):
    model = compiled(strategy)
    x, y = data(33)
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    evaluated = model.evaluate(x, y, batch_size=16, verbose=0)
    predictions = model.predict(x, batch_size=16, verbose=0)
    return result(model, history, evaluated=evaluated, predictions=predictions)


@case
def several_steps_in_one(strategy):
    model = compiled(strategy, steps_per_execution=3)
    x, y = data(40)
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    predictions = model.predict(x, batch_size=8, verbose=0)
    return result(model, history, predictions=predictions)


@case
def summed_loss(strategy):
    """With a last batch of one: nothing weighs the loss of who has none."""
    loss = keras.losses.MeanSquaredError(reduction="sum")
    optimizer = lambda: keras.optimizers.SGD(0.01)  # noqa: E731
    fit = {"batch_size": 16}
    return fitted(strategy, optimizer=optimizer, given=data(33), fit=fit, loss=loss)


@case
def tf_data_of_unknown_length(strategy):
    x, y = data(43)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.filter(lambda x, y: x[0] > 0.1).batch(8)
    model = compiled(strategy, steps_per_execution=2)
    history = model.fit(dataset, epochs=2, verbose=0, validation_data=dataset)
    predictions = model.predict(dataset, verbose=0)
    return result(model, history, predictions=predictions)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, **options):
        super().__init__(**options)
        self.x, self.y = x, y

    def __len__(self):
        return -(-len(self.x) // 8)

    def __getitem__(self, i):
        return self.x[i * 8 : i * 8 + 8], self.y[i * 8 : i * 8 + 8]


class Seen(keras.metrics.Metric):
    """Counts how often each example, named by its target, was seen."""

    def __init__(self, examples, **options):
        super().__init__(name="seen", **options)
        self.counts = self.add_variable((examples,), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        names = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
        self.counts.assign_add(
            tf.reduce_sum(tf.one_hot(names, self.counts.shape[0]), 0)
        )

    def result(self):
        once = tf.reduce_sum(tf.cast(self.counts == 1.0, tf.float32))
        return {"once": once, "all": tf.reduce_sum(self.counts)}


class AlwaysDrop(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, x):
        return keras.random.dropout(x, 0.5, seed=self.seed_generator)


@case
def dropout(strategy):
    def build():
        dropout = keras.layers.Dropout(0.5)
        return dense(dropout, keras.layers.BatchNormalization())

    model = compiled(strategy, build)
    x, y = data()
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0)
    with strategy.scope():
        probe = keras.Sequential([keras.layers.Input((64,)), AlwaysDrop()])
    kept = probe.predict(np.ones((2, 64), "float32"), verbose=0) > 0
    assert 0 < kept.sum() < kept.size
    return result(model, history, masks_differ=bool((kept[0] != kept[1]).any()))


@case
def batch_norm(strategy):
    """Synchronised, it is that of one process; not, it is the same on all workers."""

    def build():
        return dense(keras.layers.BatchNormalization(synchronized=True))

    optimizer = lambda: keras.optimizers.SGD(0.01)  # noqa: E731
    return fitted(strategy, build, optimizer, given=data(40), fit={"epochs": 2})


@case
def moving_mean(strategy):
    """Of uneven shares: that of the whole batch."""

    def build():
        return keras.Sequential(
            [keras.layers.Input((4,)), keras.layers.BatchNormalization(momentum=0.5)]
        )

    model = compiled(strategy, build, lambda: keras.optimizers.SGD(0.0))
    x, y = data(7)
    model.fit(x, y, batch_size=7, verbose=0)
    return {"hash": result(model)["hash"], "mean": model.layers[0].moving_mean.numpy()}


@case
def accumulated(strategy):
    def optimizer():
        return keras.optimizers.Adam(
            0.05, gradient_accumulation_steps=2, use_ema=True, clipnorm=0.1
        )

    return fitted(strategy, optimizer=optimizer)


class CustomStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = dense()
        self.tracker = keras.metrics.Mean(name="tracked")

    def call(self, x):
        return self.inner(x)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        self.tracker.update_state(tf.reduce_mean(y), sample_weight=tf.shape(y)[0])
        return {"tracked": self.tracker.result(), "rows": tf.reduce_mean(y)}

    @property
    def metrics(self):
        return [self.tracker]


class Counted(keras.layers.Layer):
    """Averages and counts the batches in a function of its own."""

    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.batches = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="batches"
        )

    def build(self, shape):
        self.norm.build(shape)

    @tf.function
    def call(self, x, training=None):
        if training:
            self.batches.assign_add(1.0)
        # What it normalizes is of each replica's own examples.
        self.norm(x, training=training)
        return x


@case
def function_around_a_layer(strategy):
    """Each trace of the step makes its writes: of full batches, of 5 rows, in a loop."""

    class Model(CustomStep):
        def __init__(self):
            super().__init__()
            self.counted = Counted()

        def build(self, shape):
            # Else Keras calls the model to build it, writes nothing, and one process
            # keeps what this call has traced.
            self.counted.build(shape)
            self.inner.build(shape)

        def call(self, x, training=False):
            return self.inner(self.counted(x, training=training))

    model = compiled(strategy, Model, steps_per_execution=2)
    x, y = data(37)
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    model.evaluate(x, y, batch_size=8, verbose=0)
    mean, batches = model.counted.norm.moving_mean, model.counted.batches
    found = result(model, history, mean=mean.numpy(), batches=batches.numpy())
    # The variance is that of a replica's examples.
    return {k: v for k, v in found.items() if not k.startswith("w")}


def of_three_ids():
    return keras.Sequential(
        [
            keras.layers.Input((3,), dtype="int32"),
            keras.layers.Embedding(20, 4, embeddings_initializer=ramp),
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer=ramp),
        ]
    )


def three_ids():
    ids = np.random.RandomState(1).randint(0, 20, (37, 3))
    y = ids.sum(1, keepdims=True).astype("float32") / 20
    return ids, y


@case
def rows_of_steps_in_one_call(strategy):
    """An embedding's gradient has as many rows as the batch, and the last is smaller."""

    model = compiled(strategy, of_three_ids, steps_per_execution=3)
    ids, y = three_ids()
    seen = []
    hook = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, "callbacks": [hook]}
    history = model.fit(ids, y, epochs=2, **options)
    return result(model, history, seen=np.array(seen))


def spread(targets, outputs):
    error = tf.reduce_mean((targets - outputs) ** 2)
    return error + tf.math.reduce_variance(outputs)


def greatest_error(targets, outputs):
    return tf.reduce_max(tf.abs(targets - outputs))


@case
def many_steps_of_a_loss_of_the_whole_batch(strategy):
    given = data(250)
    return fitted(
        strategy,
        optimizer=lambda: keras.optimizers.SGD(0.01),
        given=given,
        fit={"batch_size": 4, "epochs": 2, "validation_data": given},
        loss=spread,
        metrics=[greatest_error],
    )


@case
def one_batch_at_a_time(strategy):
    model = compiled(strategy)
    x, y = data(21)
    trained = [
        model.train_on_batch(x[i : i + 7], y[i : i + 7], return_dict=True)
        for i in (0, 7, 14)
    ]
    tested = model.test_on_batch(x[:5], y[:5])
    predicted = model.predict_on_batch(x[:5])
    losses = np.array([float(each["loss"]) for each in trained])
    return result(model, losses=losses, tested=np.array(tested), predicted=predicted)


# Of the first worker and of the second one: 5 and 2 batches of 4.
OWN = {0: slice(0, 20), 1: slice(20, 28)}


def train_as_one_on_own_data(model):
    """In one process: the batches that the two workers make together."""
    x, y = data(28)
    losses = []
    for begin in range(0, 20, 4):
        rows = [*range(begin, begin + 4)]
        rows += [*range(20 + begin, 24 + begin)] if begin < 8 else []
        model.reset_metrics()  # Keras 3.12 does not do so itself.
        losses.append((model.train_on_batch(x[rows], y[rows])[0], len(rows)))
    return np.average([loss for loss, _ in losses], weights=[n for _, n in losses])


def own_rows(strategy):
    x, y = data(28)
    mine = OWN[strategy.extended.worker_index]
    return tf.data.Dataset.from_tensor_slices((x[mine], y[mine]))


@case
def own_data(strategy, **compiling):
    """Each worker has different data, and one has less than the other."""
    model = compiled(strategy, **compiling)
    if isinstance(strategy, Alone):
        return result(model, loss=train_as_one_on_own_data(model)) | result(model)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    dataset = own_rows(strategy).batch(8).with_options(options)
    history = model.fit(dataset, verbose=0)
    return result(model, loss=history.history["loss"][0])


@case
def own_data_eagerly(strategy):
    """Steps without a graph have nothing to return where the data has ended."""
    return own_data(strategy, run_eagerly=True)


@case
def dataset_function(strategy):
    model = compiled(strategy, steps_per_execution=2)
    if isinstance(strategy, Alone):
        return result(model, loss=train_as_one_on_own_data(model)) | result(model)
    dataset = strategy.distribute_datasets_from_function(
        lambda context: own_rows(strategy).batch(context.get_per_replica_batch_size(8))
    )
    history = model.fit(dataset, verbose=0)
    return result(model, loss=history.history["loss"][0])


class LastTarget(keras.Sequential):
    """Logs a number of the last step that no metric keeps."""

    def train_step(self, data):
        return {**super().train_step(data), "target": tf.reduce_mean(data[1])}


@case
def many_steps(strategy):
    """63 steps of an epoch, most of which run several in a call; the last has 2 rows."""

    def build():
        return LastTarget(
            dense(keras.layers.Dense(4, "tanh", kernel_initializer=ramp)).layers
        )

    model = compiled(strategy, build=build, optimizer=keras.optimizers.Adam)
    x, y = data(250)
    history_file = tempfile.mktemp()
    fit = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    with mock.patch.dict(os.environ, {contract.HISTORY: history_file}):
        history = model.fit(x, y, validation_data=(x, y), **fit)
    found = result(model, history)
    if not isinstance(strategy, Alone):
        lines = Path(history_file).read_text().splitlines()
        epochs = [contract.EpochRecord.from_line(line) for line in lines]
        found["calls"] = [each.messages for each in epochs]
        found["steps_of_calls"] = [each.steps for each in epochs]
    return found


@case
def endless_own_data(strategy):
    """Batches of one size without an end, of which each worker has half the rows."""
    model = compiled(strategy, steps_per_execution=2)
    x, y = data(64)
    if isinstance(strategy, Alone):
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
    else:
        # Of each batch of 8, the first worker has the first 4 rows.
        mine = [
            a.reshape(-1, 2, 4, a.shape[1])[:, strategy.extended.worker_index]
            for a in (x, y)
        ]
        dataset = strategy.distribute_datasets_from_function(
            lambda _: tf.data.Dataset.from_tensor_slices(tuple(mine)).repeat()
        )
    history = model.fit(dataset, steps_per_epoch=48, epochs=2, verbose=0)
    return result(model, history)


@case
def files(strategy):
    """Three files for two workers: each example is seen once, and counts once."""
    names = np.arange(30, dtype="float32")[:, None]
    with tempfile.TemporaryDirectory() as directory:
        for i in range(3):
            with tf.io.TFRecordWriter(f"{directory}/{i}") as writer:
                for name in names[i * 10 : i * 10 + 10]:
                    writer.write(tf.io.serialize_tensor(name).numpy())
        paths = [f"{directory}/{i}" for i in range(3)]
        dataset = tf.data.TFRecordDataset(paths)
        dataset = dataset.map(
            lambda row: tf.ensure_shape(tf.io.parse_tensor(row, tf.float32), [1])
        ).map(lambda name: (name * tf.ones(4), name))
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.FILE
        )
        dataset = dataset.batch(8).with_options(options)
        with strategy.scope():
            model = dense(keras.layers.BatchNormalization())
            model.compile("sgd", "mse", metrics=[Seen(30)])
        history = model.fit(dataset, epochs=2, verbose=0).history
        model.compile("sgd", "mse")
    seen = np.array([history["once"], history["all"]])
    return {"hash": result(model)["hash"], "seen": seen}


def small(strategy):
    """A model with initial weights drawn from this process's seed."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def own_directory(strategy, name):
    """A directory per worker, which shows what that worker wrote."""
    path = f"{DIRECTORY}/{name}-files-{strategy.extended.worker_index}"
    os.makedirs(path)
    return path


@case
def initial_weights(strategy):
    return {"hash": result(small(strategy))["hash"], "seed": np.random.rand()}


@case
def callbacks(strategy):
    model, (x, y) = small(strategy), data(40)
    mine = own_directory(strategy, "callbacks")
    history = model.fit(
        x,
        y,
        batch_size=8,
        epochs=5,
        verbose=0,
        validation_data=(x, y),
        callbacks=[
            keras.callbacks.ModelCheckpoint(f"{mine}/{{epoch}}.keras"),
            keras.callbacks.CSVLogger(f"{mine}/log.csv"),
            keras.callbacks.TensorBoard(f"{mine}/board"),
            keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=100.0),
            keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=100.0),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            keras.callbacks.TerminateOnNaN(),
        ],
    )
    rate = float(model.optimizer.learning_rate.numpy())
    written = sorted(os.listdir(mine))
    return result(model, history, epochs=len(history.epoch), rate=rate, files=written)


@case
def saving(strategy):
    model, (x, y) = small(strategy), data(40)
    model.fit(x, y, batch_size=8, verbose=0)
    mine = own_directory(strategy, "saving")
    model.save(f"{mine}/model.keras")
    model.save_weights(f"{mine}/model.weights.h5")
    model.export(f"{mine}/export", verbose=False)
    archive = keras.export.ExportArchive()
    archive.track_and_add_endpoint("serve", model, [tf.TensorSpec([None, 4])])
    archive.write_out(f"{mine}/archive", verbose=False)
    archive.write_out(f"{DIRECTORY}/archive", verbose=False)
    served = tf.saved_model.load(f"{DIRECTORY}/archive")
    model.save(f"{DIRECTORY}/saved.keras")
    with strategy.scope():
        loaded = keras.models.load_model(f"{DIRECTORY}/saved.keras")
    same = result(loaded)["hash"] == result(model)["hash"]
    same = same and np.allclose(served.serve(x), model.predict(x, verbose=0), atol=1e-5)
    loaded.fit(x, y, batch_size=8, verbose=0)
    told = ""
    try:
        model.load_weights(f"{mine}/missing.weights.h5")
    except FileNotFoundError as error:
        told = "".join(getattr(error, "__notes__", []))
    return result(loaded, same=same, files=sorted(os.listdir(mine)), told=told)


@case
def saving_elsewhere(strategy):
    """As TensorFlow's guide: another worker saves to a directory that it removes."""
    model, shared = small(strategy), Path(DIRECTORY, "elsewhere")
    own = shared if strategy.is_chief else shared / "workertemp_1"
    loads = shared / "loads"
    shared.mkdir(exist_ok=True)
    wait_until(lambda: loads.exists() or not strategy.is_chief)
    own.mkdir(exist_ok=True)
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, f"{own}/ckpt", max_to_keep=1)
    model.save(own / "model.keras")
    model.export(f"{own}/exported", verbose=False)
    manager.save()
    if not strategy.is_chief:
        shutil.rmtree(own)
        loads.touch()
    loaded = tf.keras.models.load_model(shared / "model.keras")
    exported = tf.saved_model.load(f"{shared}/exported")
    checkpoint.restore(tf.train.latest_checkpoint(f"{shared}/ckpt")).assert_consumed()
    pairs = zip(loaded.get_weights(), model.get_weights(), strict=True)
    same = all(np.array_equal(*pair) for pair in pairs)
    return result(model, same=same and hasattr(exported, "serve"))


@case
def saving_again(strategy):
    """Three saves of two names, of which one is the worker's own.

    The chief is slow: the other worker loads before it saves.
    """
    model, shared = small(strategy), Path(DIRECTORY, "again")
    own = shared if strategy.is_chief else Path(DIRECTORY, "again_1")
    own.mkdir(exist_ok=True)
    shared.mkdir(exist_ok=True)
    loaded = []
    for version in range(3):
        model.set_weights([np.full_like(w, version) for w in model.get_weights()])
        loads = shared / f"loads_{version}"
        if strategy.is_chief:
            wait_until(loads.exists)
            time.sleep(0.5)
        model.save(own / "model.keras")
        model.save(own / f"model-{strategy.extended.worker_index}.keras")
        loads.touch()
        for name in ("model-0.keras", "model.keras"):
            of_chief = keras.models.load_model(shared / name)
            loaded.append(float(of_chief.get_weights()[0].flat[0]))
    return result(model, loaded=loaded)


def wait_until(condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "too late"
        time.sleep(0.02)


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` at a step, as if the process ended, once there is a checkpoint."""

    def __init__(self, at, directory, is_writer, see):
        super().__init__()
        self.at, self.directory, self.is_writer = at, Path(directory), is_writer
        self.see = see

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch_now = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.see((self.epoch_now, batch))

    def on_train_batch_end(self, batch, logs=None):
        if self.at == (self.epoch_now, batch):
            checkpoints = "fit-*/checkpoint-*"
            wait_until(
                lambda: not self.is_writer or any(self.directory.glob(checkpoints))
            )
            raise KeyboardInterrupt


KINDS_OF_DATA = ("arrays", "seeded", "endless", "unknown", "py_dataset", "own")


def kinds_of_data():
    """What `fit` is given, by its kind: five batches of eight, or of four twice."""
    x, y = data(40)
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    own = tf.data.Options()
    own.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return {
        "arrays": lambda: {"x": x, "y": y, "batch_size": 8},
        "seeded": lambda: {"x": rows.shuffle(40, seed=3).batch(8)},
        "endless": lambda: {"x": rows.batch(8).repeat(), "steps_per_epoch": 3},
        "unknown": lambda: {"x": rows.filter(lambda *_: True).batch(8)},
        "py_dataset": lambda: {"x": Batches(x, y), "shuffle": True},
        "own": lambda: {"x": rows.shuffle(40, seed=1).batch(4).with_options(own)},
    }


def kept(kind, strategy):
    """Interrupted at step 2 of epoch 1, and continued from a checkpoint."""
    from tfdist.peers import input as sharing

    directory, make = own_directory(strategy, f"kept_{kind}"), kinds_of_data()[kind]

    def train(at=None):
        # As in a new process.
        keras.utils.set_random_seed(1)
        sharing._draws = itertools.count()
        strategy.fit_driver._keeper._fits = 0
        model = small(strategy)
        seen = []
        note = Interrupt(at, directory, strategy.is_chief, seen.append)
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(**make(), epochs=3, verbose=0, callbacks=[note])
        return model, seen[0]

    whole, _ = train()
    strategy.checkpoints.directory = directory
    strategy.checkpoints.every = 1e-6
    train(at=(1, 2))
    again, first = train()
    strategy.checkpoints.directory = None
    return {
        **result(again, again.history, first=first),
        "expected": result(whole, whole.history),
    }


for _kind in KINDS_OF_DATA:
    CASES[f"kept_{_kind}"] = functools.partial(kept, _kind)


@case
def unequal_data(strategy):
    """The workers have datasets of 5 and of 4 batches with the same beginning."""
    rows = 40 - 8 * strategy.extended.worker_index
    dataset = tf.data.Dataset.from_tensor_slices(data(40)).take(rows).batch(8)
    try:
        compiled(strategy).fit(dataset, verbose=0)
    except ValueError as error:
        return {"message": f"{type(error).__name__}: {error}"}
    return {"message": "no error"}


@case
def packs(strategy):
    """How many messages four gradients of 3 MB are."""
    from tfdist.synchronous.replica.collectives import reduce_gradients

    @tf.function
    def step():
        def on_replica():
            gradients = [tf.ones([750_000])] * 4
            options = strategy.extended.communication_options
            return reduce_gradients(gradients, options)

        return strategy.run(on_replica)

    graph = step.get_concrete_function().graph
    kinds = [each.type for each in graph.get_operations()]
    sums = strategy.experimental_local_results(step())[0]
    return {
        "packs": sum(kind.startswith("CollectiveReduce") for kind in kinds),
        "sums": [float(each[-1]) for each in sums],
    }


def main(directory, *names):
    import tfdist

    if os.environ.get("LOCAL_DEVICES"):
        cpu = tf.config.list_physical_devices("CPU")[0]
        count = int(os.environ["LOCAL_DEVICES"])
        logical = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(cpu, logical)
    global DIRECTORY
    DIRECTORY = directory
    name = os.environ.get("STRATEGY", "MultiWorkerMirroredStrategy")
    strategy = getattr(tfdist, name)(startup_timeout=200)
    index = strategy.extended.worker_index
    case_jobs.run_cases(
        directory,
        names,
        CASES,
        strategy,
        index,
        before=lambda: keras.utils.set_random_seed(index + 1),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
