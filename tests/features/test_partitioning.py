"""Variables in shards, over several ps."""

import contextlib
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import assert_alike, compiled, state_of

import tfdist
from tfdist.variables.partitioned import PartitionedVariable

from ..support.raising import raises

pytestmark = pytest.mark.parameter_server

layers = keras.layers
HALVES = tfdist.FixedShardsPartitioner(2)

OPTIMIZERS = [
    keras.optimizers.SGD,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adagrad,
    keras.optimizers.RMSprop,
    keras.optimizers.Lion,
]


def columns(shape, dtype, axis=0):
    return [1] * (len(shape) - 1) + [2] if shape[-1] > 1 else [1] * len(shape)


def build(optimizer=keras.optimizers.SGD, options=None, **compile):
    dense = layers.Dense(6, "tanh"), layers.Dense(1)
    return compiled(*dense, optimizer=optimizer(**options or {}), **compile)


def partitioned(strategy, partitioner=HALVES, **compile):
    with strategy.scope(), tfdist.partition_variables(partitioner):
        return build(**compile)


def shards(variable):
    return variable._value.shards


def weights_after_training(model, data, weights, epochs=3):
    model.set_weights(weights)
    x, y = data
    model.fit(x, y, batch_size=len(x), epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights()


def assert_trains_as_plain_keras(model, plain, data):
    weights = [w + 0.1 for w in plain.get_weights()]
    results = [weights_after_training(m, data, weights) for m in (model, plain)]
    for ours, theirs, before in zip(*results, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
        assert not np.allclose(ours, before, atol=1e-5)


@pytest.mark.in_gate("Adam")
@pytest.mark.feature("A Keras variable in shards: rows")
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: each.__name__)
def test_rows(strategy, regression, optimizer):
    model = partitioned(strategy, optimizer=optimizer)
    assert [len(shards(w)) for w in model.weights[:3]] == [2, 2, 2]
    plain = build(optimizer)
    assert_trains_as_plain_keras(model, plain, regression)
    kernel = model.weights[0]
    slots = [v for v in model.optimizer.variables if v.shape == kernel.shape]
    for slot in slots:
        devices = [shard.device for shard in shards(slot)]
        assert devices == [shard.device for shard in shards(kernel)]


@pytest.mark.feature("A Keras variable in shards: columns")
def test_columns(strategy, regression):
    model = partitioned(strategy, columns, optimizer=keras.optimizers.Adam)
    kernel = model.weights[0]
    assert [tuple(s.shape) for s in shards(kernel)] == [(4, 3), (4, 3)]
    plain = build(keras.optimizers.Adam)
    assert_trains_as_plain_keras(model, plain, regression)


@pytest.mark.feature("Shards follow the placement, and appear in the report")
def test_shards_are_placed_and_reported(strategy):
    model = partitioned(strategy)
    kernel = model.weights[0]
    assert {shard.device.split("task:")[1][0] for shard in shards(kernel)} == {"0", "1"}
    placed = {v.spec.name: v for v in strategy.placement_report().variables}
    for rows, shard in zip(("0:2", "2:4"), shards(kernel), strict=True):
        part = placed[f"{kernel.path}[{rows}]"]
        assert part.spec.shape == (2, 6)
        assert f"task:{part.ps}" in shard.device


@pytest.mark.sets_own_value("_average", "an average whose decay depends on the step")
@pytest.mark.feature("Clipping, weight decay and EMA of variables in shards")
def test_options_of_optimizers(strategy, regression):
    options = {"clipnorm": 0.5, "weight_decay": 0.01, "use_ema": True}
    model = partitioned(strategy, optimizer=keras.optimizers.Adam, options=options)
    plain = build(keras.optimizers.Adam, options)
    assert_trains_as_plain_keras(model, plain, regression)


@pytest.mark.feature("A recurrent layer in shards")
def test_recurrent_layer(strategy):
    def lstm():
        model = keras.Sequential([keras.Input((5, 3)), layers.LSTM(4), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    with strategy.scope(), tfdist.partition_variables(HALVES):
        model = lstm()
    assert len(shards(model.weights[1])) == 2
    x = np.random.default_rng(1).normal(size=(16, 5, 3)).astype("float32")
    assert_trains_as_plain_keras(model, lstm(), (x, x[:, 0, :1]))


@pytest.mark.feature("`steps_per_execution` with variables in shards")
def test_steps_read_what_the_step_before_wrote(strategy, regression):
    x, y = regression
    model = partitioned(strategy, steps_per_execution=8)
    plain = build()
    model.set_weights(plain.get_weights())
    for each in (model, plain):
        each.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert_alike(model.get_weights(), plain.get_weights(), atol=1e-6)


@pytest.mark.in_gate
@pytest.mark.feature("No update of a shard is lost")
def test_sum_of_gradients_is_exact(strategy, until_both_ran):
    def total(y, y_pred):
        return tf.reduce_sum(y_pred, axis=1)

    steps, rate = 64, 2.0**-10
    with strategy.scope(), tfdist.partition_variables(HALVES):
        model = compiled(
            layers.Dense(6, use_bias=False, kernel_initializer="zeros"),
            optimizer=keras.optimizers.SGD(rate),
            loss=total,
        )
    x, y = np.ones((4 * steps, 4)), np.zeros((4 * steps, 6))
    fits = until_both_ran(lambda: model.fit(x, y, batch_size=4, verbose=0))
    np.testing.assert_array_equal(model.get_weights()[0], -fits * steps * rate)


@pytest.mark.feature("`.keras` of variables in shards, loaded without tfdist")
def test_keras_file(strategy, regression, tmp_path):
    model = partitioned(strategy, optimizer=keras.optimizers.Adam)
    model.fit(*regression, verbose=0)
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert_alike(state_of(model), state_of(plain))


def dense_model():
    return [keras.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(1)]


def embedding_model():
    table = tfdist.embedding.Embedding(23, 4, partition_strategy="mod")
    return [keras.Input((4,), dtype="int64"), table, layers.Flatten()]


def bag_model():
    return [
        keras.Input((4,), dtype="int64"),
        tfdist.embedding.EmbeddingBag(23, 4, "sqrtn"),
    ]


@pytest.mark.in_part("True-embedding_model", "False-dense_model")
@pytest.mark.feature(
    "`model.export` of variables in shards, loaded unsplit without tfdist"
)
@pytest.mark.parametrize("model_of", [dense_model, embedding_model, bag_model])
@pytest.mark.parametrize("in_scope", [False, True])
def test_export(strategy, tmp_path, run_program, model_of, in_scope):
    with strategy.scope(), tfdist.partition_variables(HALVES):
        model = keras.Sequential(model_of())
        model.compile("adam", "mse")
    x = np.random.default_rng(0).integers(0, 23, (5, 4)).astype(model.inputs[0].dtype)
    before = [shards(weight) for weight in model.weights if weight.shape[0] > 1]
    gc.collect()  # Of other tests, whose variables might go meanwhile.
    placed = set(strategy.placement_report().variables)
    path = str(tmp_path / "exported")
    with strategy.scope() if in_scope else contextlib.nullcontext():
        model.export(path, verbose=False)
    assert [shards(w) for w in model.weights if w.shape[0] > 1] == before
    assert set(strategy.placement_report().variables) <= placed
    np.savez(tmp_path / "in.npz", x=x)
    files = str(tmp_path / "in.npz"), str(tmp_path / "out.npz")
    done = run_program("load_exported_shards.py", path, *files)
    assert done.returncode == 0, done.stderr
    loaded = dict(np.load(files[1]))
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(loaded.pop("y"), expected, atol=1e-6)
    np.testing.assert_allclose(loaded.pop("layer"), expected, atol=1e-6)
    assert_alike(model.get_weights(), loaded.values())


LAYOUTS = {
    "whole": lambda shape, dtype, axis=0: [1] * len(shape),
    "halves": HALVES,
    "thirds": tfdist.FixedShardsPartitioner(3),
    "columns": columns,
}


@pytest.mark.in_gate("whole-thirds")
@pytest.mark.feature(
    "A checkpoint restores into any other number of shards, with the slots"
)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("whole", "thirds"),
        ("halves", "whole"),
        ("thirds", "columns"),
        ("columns", "halves"),
    ],
)
def test_reshard_on_restore(strategy, regression, tmp_path, before, after):
    saved = partitioned(strategy, LAYOUTS[before], optimizer=keras.optimizers.Adam)
    saved.fit(*regression, verbose=0)
    path = tf.train.Checkpoint(model=saved).save(str(tmp_path / "checkpoint"))
    model = partitioned(strategy, LAYOUTS[after], optimizer=keras.optimizers.Adam)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model).restore(path).assert_consumed()
    assert_alike(state_of(model), state_of(saved))
    assert np.abs(np.array(model.optimizer.variables[2])).max() > 0


class Normalized(keras.optimizers.SGD):
    """Looks at the norm of each weight, as a user's own optimizer may."""

    def update_step(self, gradient, variable, learning_rate):
        norm = keras.ops.sqrt(keras.ops.sum(keras.ops.square(variable)))
        super().update_step(gradient * norm, variable, learning_rate)


@pytest.mark.sets_own_value("^adafactor", "an average whose decay depends on the step")
@pytest.mark.feature(
    "An optimizer that looks at whole weights, with variables in shards"
)
@pytest.mark.parametrize("name", ["Lamb", "Muon", "Adafactor", "Normalized"])
def test_optimizer_of_whole_weights(strategy, regression, name):
    optimizer = Normalized if name == "Normalized" else vars(keras.optimizers).get(name)
    if optimizer is None:
        pytest.skip(f"this Keras has no {name}")
    options = {"learning_rate": 0.02}
    model = partitioned(strategy, optimizer=optimizer, options=options)
    assert_trains_as_plain_keras(model, build(optimizer, options), regression)


@pytest.mark.feature("A constraint on a variable in shards")
@pytest.mark.parametrize("partitioner", [HALVES, columns], ids=["rows", "columns"])
def test_constraint(strategy, regression, sent, in_rounds, partitioner):
    def build():
        short = layers.Dense(
            6, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.5)
        )
        return compiled(short, layers.Dense(1))

    with strategy.scope(), tfdist.partition_variables(partitioner):
        model = build()
    plain = build()
    assert_trains_as_plain_keras(model, plain, regression)
    norms = np.linalg.norm(model.get_weights()[0], axis=0)
    assert norms.max() < 0.5 + 1e-4
    squares = [
        op
        for function in sent.functions
        for op in function.graph.get_operations()
        if op.type == "Sqrt"
    ]
    assert squares or in_rounds
    assert all("/job:ps" in op.device for op in squares)


@pytest.mark.feature(
    "A partitioner that returns invalid numbers",
    "no",
    "the error names it and the variable",
)
@pytest.mark.parametrize("counts", [[2], [2, 2], [0, 1], "two", [9, 1], None])
def test_nonsense(strategy, counts):
    def nonsense(shape, dtype, axis=0):
        return counts if len(shape) == 2 else [1] * len(shape)

    words = r"partitioner nonsense returned .*dense.*/kernel of shape \(4, 6\)"
    with pytest.raises(tfdist.errors.PartitionError, match=words):
        partitioned(strategy, nonsense)


def test_recomputed_gradients(strategy, regression):
    class Recomputed(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1)

        def build(self, shape):
            self.dense.build(shape)

        def call(self, x):
            return tf.recompute_grad(self.dense)(x)

    def build():
        model = Recomputed()
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.build((None, 4))
        return model

    with strategy.scope(), tfdist.partition_variables(HALVES):
        model = build()
    assert_trains_as_plain_keras(model, build(), regression)


class InLoop(keras.Model):
    """A step of two updates in a `tf.while_loop`, each from what the last has written."""

    def train_step(self, data):
        x, y = data

        def body(i, _):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return i + 1, loss

        _, loss = tf.while_loop(lambda i, _: i < 2, body, (0, 0.0))
        return {"loss": loss}


class InFunction(InLoop):
    """The same, of a `tf.function`."""

    def train_step(self, data):
        return tf.function(super().train_step)(data)


class TapeOutside(keras.Model):
    """A step whose tape watches what it is told, around a loop that uses each weight."""

    def train_step(self, data):
        x, y = data

        def body(i, total):
            return i + 1, total + self.compute_loss(x, y, self(x, training=True))

        variables = self.trainable_variables
        weights = {each.path: each.value for each in variables}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            _, loss = tf.while_loop(lambda i, _: i < 2, body, (0, 0.0))
        found = tape.gradient(loss, weights)
        self.optimizer.apply([found[each.path] for each in variables], variables)
        return {"loss": loss}


class Jacobian(keras.Model):
    """A step that descends along the sum of the gradients of each example."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            losses = tf.reduce_mean((self(x, training=True) - y) ** 2, axis=1)
        variables = self.trainable_variables
        found = tape.jacobian(losses, variables)
        self.optimizer.apply([tf.reduce_sum(each, 0) for each in found], variables)
        return {"loss": tf.reduce_mean(losses)}


class Compiled(layers.Layer):
    """A layer that computes in a `tf.function`."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = layers.Dense(6)
        self.compute = tf.function(self.dense, autograph=False)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.compute(x)


class Twice(keras.Model):
    """A step that trains twice."""

    def train_step(self, data):
        super().train_step(data)
        return super().train_step(data)


def functional(kind, layer=layers.Dense):
    inputs = keras.Input((4,))
    hidden = layer() if layer is Compiled else layer(6, "tanh")
    outputs = layers.Dense(1)(hidden(inputs))
    model = kind(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.steps_write
@pytest.mark.feature("Updates in a loop or a `tf.function`, of variables in shards")
@pytest.mark.parametrize("kind", [InLoop, InFunction])
def test_a_loop_reads_what_it_has_written(strategy, regression, kind):
    with strategy.scope(), tfdist.partition_variables(HALVES):
        model = functional(kind)
    assert_trains_as_plain_keras(model, functional(kind), regression)


@pytest.mark.in_gate("Twice-Compiled")
@pytest.mark.steps_write
@pytest.mark.feature("A tape around a loop or a `tf.function`, of variables in shards")
@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        (keras.Model, Compiled),
        (Twice, layers.Dense),
        (Twice, Compiled),
        (TapeOutside, layers.Dense),
        (TapeOutside, Compiled),
        (Jacobian, layers.Dense),
    ],
)
def test_tapes_around_what_reads(strategy, regression, kind, layer):
    with strategy.scope(), tfdist.partition_variables(HALVES):
        model = functional(kind, layer)
    assert_trains_as_plain_keras(model, functional(kind, layer), regression)


@pytest.mark.in_gate
@pytest.mark.feature("A large weight is split over the ps where links are slow")
@pytest.mark.parametrize("binds", [False, True], ids=["fast", "slow"])
def test_large_weights_are_split_where_links_are_slow(strategy, monkeypatch, binds):
    monkeypatch.setattr(strategy.extended, "_seconds_per_byte", 4e-8 * binds)

    def build():
        keras.utils.set_random_seed(3)
        hidden = layers.Dense(256, kernel_initializer="random_normal")
        model = keras.Sequential([keras.Input((784,)), hidden, layers.Dense(10)])
        model.compile("adam", "mse")
        return model

    with strategy.scope():
        model = build()
        table = layers.Embedding(1000, 256)
        table.build()
        convolution = layers.Conv2D(64, 5)
        convolution.build((None, 8, 8, 32))
        with tfdist.partition_variables(tfdist.FixedShardsPartitioner(1)):
            whole = layers.Dense(256)
            whole.build((None, 784))
    # Its values, too, are those of one process.
    assert_alike(model.get_weights(), build().get_weights())
    large, *small = model.weights
    if not binds:
        assert not isinstance(large.value, PartitionedVariable)
        return
    assert [tuple(each.shape) for each in shards(large)] == [(392, 256)] * 2
    assert len({each.device for each in shards(large)}) == 2
    # Of its rows there are too few.
    assert [each.shape for each in shards(convolution.kernel)] == [(5, 5, 32, 32)] * 2
    with raises(AttributeError, "2 ps", "tf.GradientTape"):
        large.value.handle  # noqa: B018
    for each in (*small, table.embeddings, whole.kernel):
        assert not isinstance(each._value, PartitionedVariable)
