"""Embeddings whose rows are spread over the ps."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import assert_alike, state_of

import tfdist

from ..support.raising import raises

pytestmark = pytest.mark.parameter_server

layers = keras.layers

ROWS, DIM, BAGS, SIZE = 23, 4, 32, 6


class DenseLookup(layers.Layer):
    """What an embedding computes, with a dense gradient."""

    def build(self, input_shape):
        self.table = self.add_weight((ROWS, DIM), "uniform", name="embeddings")

    def call(self, ids):
        return keras.ops.matmul(keras.ops.one_hot(ids, ROWS), self.table)


@pytest.fixture(params=["div", "mod"])
def partition_strategy(request):
    return request.param


@pytest.fixture
def ids():
    return np.random.default_rng(0).integers(0, ROWS, (BAGS, SIZE))


@pytest.fixture
def targets():
    return np.random.default_rng(1).normal(size=(BAGS, 1)).astype("float32")


def model_of(lookup, optimizer, options=None):
    model = keras.Sequential(
        [
            keras.Input((SIZE,), dtype="int64"),
            lookup,
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer(**options or {}), "mse")
    return model


def train(model, ids, targets, epochs=3):
    model.fit(ids, targets, batch_size=BAGS, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights()


def shards(variable):
    return variable._value.shards


@pytest.mark.feature("`tfdist.embedding.Embedding`: rows and slots spread over the ps")
def test_rows_and_slots_are_spread(strategy):
    with strategy.scope():
        table = tfdist.embedding.Embedding(ROWS, DIM)
        model = model_of(table, keras.optimizers.Adam)
        model.optimizer.build(model.trainable_variables)
    devices = [shard.device for shard in shards(table.embeddings)]
    assert [int(shard.shape[0]) for shard in shards(table.embeddings)] == [12, 11]
    assert len(set(devices)) == 2
    slots = [v for v in model.optimizer.variables if v.shape == (ROWS, DIM)]
    assert len(slots) == 2
    for slot in slots:
        assert [shard.device for shard in shards(slot)] == devices
    values = model.get_weights()[0]
    assert not np.allclose(values[:11], values[12:]), "the shards began alike"
    assert np.abs(values).max() <= 0.05


DENSE_ALIKE = [
    pytest.param(keras.optimizers.SGD, {"learning_rate": 0.5}, id="SGD"),
    pytest.param(keras.optimizers.Adagrad, {"learning_rate": 0.5}, id="Adagrad"),
]


@pytest.mark.feature("Updates by row equal those of a dense gradient: SGD, Adagrad")
@pytest.mark.parametrize(("optimizer", "options"), DENSE_ALIKE)
def test_update_by_row_is_that_of_a_dense_gradient(
    strategy, ids, targets, optimizer, options, partition_strategy
):
    with strategy.scope():
        table = tfdist.embedding.Embedding(
            ROWS, DIM, partition_strategy=partition_strategy
        )
        model = model_of(table, optimizer, options)
    plain = model_of(DenseLookup(), optimizer, options)
    plain.set_weights(model.get_weights())
    before = model.get_weights()[0]
    after, expected = train(model, ids, targets), train(plain, ids, targets)
    assert_alike(after, expected, atol=1e-6)
    assert np.abs(after[0] - before).max() > 0.01


def in_one_piece(strategy):
    return layers.Embedding(ROWS, DIM)


def in_shards(strategy):
    halves = tfdist.partition_variables(tfdist.FixedShardsPartitioner(2))
    table = layers.Embedding(ROWS, DIM)
    with strategy.scope(), halves:
        table.build()
    return table


def looked_up_twice(strategy):
    table = layers.Embedding(ROWS, DIM)
    halves = layers.Lambda(lambda ids: tf.split(ids, 2, axis=1))
    ids = keras.Input((SIZE,), dtype="int64")
    rows = [table(half) for half in halves(ids)]
    return keras.Model(ids, layers.Concatenate(axis=1)(rows))


@pytest.mark.in_gate("Adam-looked_up_twice")
@pytest.mark.feature(
    "`keras.layers.Embedding`, in shards or not, sums the gradients of each id"
)
@pytest.mark.parametrize(
    ("optimizer", "options", "lookup"),
    [
        pytest.param(
            keras.optimizers.SGD,
            {"learning_rate": 0.5},
            in_one_piece,
            id="SGD-in_one_piece",
        ),
        pytest.param(
            keras.optimizers.Adagrad,
            {"learning_rate": 0.5},
            in_shards,
            id="Adagrad-in_shards",
        ),
        pytest.param(
            keras.optimizers.Adam, {}, looked_up_twice, id="Adam-looked_up_twice"
        ),
        pytest.param(keras.optimizers.RMSprop, {}, in_shards, id="RMSprop-in_shards"),
    ],
)
def test_keras_embedding_sums_by_row(
    strategy, ids, targets, lookup, optimizer, options
):
    assert_trains_as_dense(strategy, ids, targets, lookup, optimizer, options)


@pytest.mark.parametrize("lookup", [in_one_piece, in_shards])
def test_gradient_of_keras_embedding_is_clipped_by_the_norm_of_the_sum(
    strategy, ids, targets, lookup
):
    options = {"clipnorm": 0.01, "learning_rate": 0.5}
    optimizer = keras.optimizers.SGD
    assert_trains_as_dense(strategy, ids, targets, lookup, optimizer, options)


def assert_trains_as_dense(strategy, ids, targets, lookup, optimizer, options):
    with strategy.scope():
        model = model_of(lookup(strategy), optimizer, options)
    plain = model_of(DenseLookup(), optimizer, options)
    plain.set_weights(model.get_weights())
    after, expected = train(model, ids, targets), train(plain, ids, targets)
    assert_alike(after, expected, atol=1e-5)


LAZY = [
    pytest.param(keras.optimizers.Adam, {}, id="Adam"),
    pytest.param(keras.optimizers.SGD, {"momentum": 0.9}, id="momentum"),
    pytest.param(keras.optimizers.RMSprop, {}, id="RMSprop"),
]


@pytest.mark.feature(
    "Updates by row: Adam, momentum, RMSprop",
    "approximate",
    "rows that are not looked up keep their values and slots",
)
@pytest.mark.parametrize(("optimizer", "options"), LAZY)
def test_rows_not_looked_up_stay(strategy, ids, targets, optimizer, options):
    with strategy.scope():
        model = model_of(tfdist.embedding.Embedding(ROWS, DIM), optimizer, options)
    plain = model_of(DenseLookup(), optimizer, options)
    plain.set_weights(model.get_weights())
    before = model.get_weights()[0]
    every = np.arange(BAGS * SIZE).reshape(BAGS, SIZE) % ROWS
    # While every row is looked up in each step, nothing differs.
    assert_alike(train(model, every, targets), train(plain, every, targets), atol=1e-5)
    tables = [v for v in model.optimizer.variables if v.shape == (ROWS, DIM)]
    kept = [np.array(v)[10:] for v in (model.weights[0], *tables)]
    assert all(np.abs(each).max() > 0 for each in kept)
    train(model, ids % 10, targets)
    for variable, rows in zip((model.weights[0], *tables), kept, strict=True):
        np.testing.assert_array_equal(np.array(variable)[10:], rows)
    assert not np.allclose(model.get_weights()[0][:10], before[:10])


def done_to(shard, function):
    """The operations that a step applies to a shard."""
    inside = [i for o, i in function.graph.captures if o is shard.handle]
    return {op.type for handle in inside for op in handle.consumers()}


@pytest.mark.feature(
    "No step reads a whole table or slot: `tfdist.embedding.Embedding`"
)
@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_no_step_reads_a_whole_table(
    strategy, ids, targets, sent, in_rounds, optimizer
):
    with strategy.scope():
        model = model_of(tfdist.embedding.Embedding(ROWS, DIM), optimizer)
    train(model, ids, targets)
    (function,) = sent.functions
    tables = [model.weights[0]]
    # In rounds, the update writes, and not the step.
    if not in_rounds:
        tables += [v for v in model.optimizer.variables if v.shape == (ROWS, DIM)]
    for shard in (shard for table in tables for shard in shards(table)):
        done = done_to(shard, function)
        assert "ResourceGather" in done
        writes = done & {"ResourceScatterNdAdd", "ResourceScatterNdSub"}
        assert bool(writes) != in_rounds
        assert "ReadVariableOp" not in done


def test_each_different_id_travels_once(strategy):
    with strategy.scope():
        table = layers.Embedding(ROWS, DIM)
        table.build()
    graph = tf.function(lambda ids: table(ids)).get_concrete_function(
        tf.TensorSpec([None, SIZE], tf.int64)
    )
    (gather,) = (
        op
        for op in graph.graph.get_operations()
        if "Gather" in op.type and op.inputs[0].dtype == tf.resource
    )
    assert gather.inputs[1].op.type == "Unique"


@pytest.mark.feature(
    "The sum of gradients by row is exact: `tfdist.embedding.Embedding`"
)
def test_sum_of_gradients_is_exact(strategy, until_both_ran):
    def total(y, y_pred):
        return tf.reduce_sum(y_pred, axis=[1, 2])

    steps, rate = 96, 2.0**-10
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((SIZE,), dtype="int64"),
                tfdist.embedding.Embedding(ROWS, DIM, embeddings_initializer="zeros"),
            ]
        )
        model.compile(keras.optimizers.SGD(rate), total)
    x = np.random.default_rng(2).integers(0, ROWS, (4 * steps, SIZE))
    fits = until_both_ran(
        lambda: model.fit(x, np.zeros(4 * steps), batch_size=4, verbose=0)
    )
    times = fits * np.bincount(x.ravel(), minlength=ROWS)[:, None]
    expected = np.broadcast_to(-times * rate / 4, (ROWS, DIM))
    np.testing.assert_array_equal(model.get_weights()[0], expected)


def combined(table, bags, weights, combiner):
    rows = []
    for ids, each in zip(bags, weights, strict=True):
        total = (table[ids] * each[:, None]).sum(0)
        divisor = {
            "sum": 1.0,
            "mean": each.sum() or 1.0,
            "sqrtn": np.sqrt((each**2).sum()) or 1.0,
        }
        rows.append(total / divisor[combiner])
    return np.array(rows)


@pytest.fixture
def bags():
    random = np.random.default_rng(3)
    bags = [random.integers(0, ROWS, random.integers(0, SIZE)) for _ in range(BAGS)]
    bags[3] = np.array([], int)
    bags[4] = np.array([7, 7, 7])
    return bags


def as_ragged(values):
    return tf.ragged.constant([list(each) for each in values])


def as_sparse(values):
    return as_ragged(values).to_sparse()


def as_dense(values):
    fill = -1 if values[4].dtype.kind == "i" else -1.0
    return as_ragged(values).to_tensor(fill)


KINDS = {"ragged": as_ragged, "sparse": as_sparse, "dense": as_dense}


def bag_model(layer, kind, weighted, **compile):
    options = {"ragged": kind == "ragged", "sparse": kind == "sparse"}
    shape = (SIZE - 1,) if kind == "dense" else (None,)
    ids = keras.Input(shape, dtype="int64", **options)
    inputs, arguments = [ids], {}
    if weighted:
        inputs.append(keras.Input(shape, **options))
        arguments["weights"] = inputs[1]
    output = layers.Dense(1)(layer(ids, **arguments))
    model = keras.Model(inputs, output)
    model.compile(keras.optimizers.SGD(0.1), "mse", **compile)
    return model


@pytest.mark.feature("`tfdist.embedding.EmbeddingBag` of ragged, sparse and padded ids")
@pytest.mark.parametrize(
    ("partition_strategy", "combiner", "kind"),
    [
        ("div", "sum", "ragged"),
        ("div", "mean", "sparse"),
        ("div", "sqrtn", "dense"),
        ("mod", "sum", "dense"),
        ("mod", "mean", "ragged"),
        ("mod", "sqrtn", "sparse"),
    ],
)
def test_bags(strategy, bags, kind, combiner, partition_strategy):
    with strategy.scope():
        layer = tfdist.embedding.EmbeddingBag(
            ROWS, DIM, combiner, partition_strategy=partition_strategy
        )
        model = bag_model(layer, kind, weighted=False)
    data = tf.data.Dataset.from_tensors(KINDS[kind](bags))
    ones = [np.ones(len(ids)) for ids in bags]
    table, kernel, bias = model.get_weights()
    expected = combined(table, bags, ones, combiner) @ kernel + bias
    predicted = model.predict(data, verbose=0)
    np.testing.assert_allclose(predicted, expected, atol=1e-6)


@pytest.mark.in_gate("True-ragged")
@pytest.mark.feature(
    "Weights of the ids, and `max_norm`: `tfdist.embedding.EmbeddingBag`"
)
@pytest.mark.parametrize(
    ("aggregate", "kind"), [(True, "ragged"), (False, "sparse"), (None, "dense")]
)
def test_bags_train(strategy, bags, targets, kind, aggregate):
    random = np.random.default_rng(5)
    weights = [random.random(len(ids)).astype("float32") + 0.1 for ids in bags]
    with strategy.scope():
        layer = tfdist.embedding.EmbeddingBag(
            ROWS, DIM, max_norm=0.05, aggregate=aggregate
        )
        counter = layer.count_bytes()
        model = bag_model(layer, kind, weighted=True)
    table, kernel, bias = model.get_weights()
    inputs = (KINDS[kind](bags), KINDS[kind](weights))
    data = tf.data.Dataset.from_tensors((inputs, targets))
    model.fit(data, epochs=3, verbose=0)
    assert counter.total().moved > 0

    table, kernel, bias = map(tf.Variable, (table, kernel, bias))
    for _ in range(3):
        with tf.GradientTape() as tape:
            rows = tf.compat.v1.nn.embedding_lookup_sparse(
                table,
                as_sparse(bags),
                as_sparse(weights),
                combiner="mean",
                max_norm=0.05,
            )
            rows = tf.pad(rows, [[0, BAGS - tf.shape(rows)[0]], [0, 0]])
            loss = tf.reduce_mean((rows @ kernel + bias - targets) ** 2)
        variables = [table, kernel, bias]
        for each, by in zip(variables, tape.gradient(loss, variables), strict=True):
            each.assign_sub(0.1 * tf.convert_to_tensor(by))
    assert_alike(model.get_weights(), variables, atol=1e-5)


@pytest.mark.feature(
    "Weights of `tfdist.embedding.Embedding` load into Keras's, and back"
)
def test_weights_of_keras_and_back(
    strategy, ids, targets, tmp_path, partition_strategy
):
    with strategy.scope():
        table = tfdist.embedding.Embedding(
            ROWS, DIM, partition_strategy=partition_strategy
        )
        model = model_of(table, keras.optimizers.Adam)
    trained = train(model, ids, targets)
    model.save_weights(tmp_path / "ours.weights.h5")
    plain = model_of(layers.Embedding(ROWS, DIM), keras.optimizers.Adam)
    plain.load_weights(tmp_path / "ours.weights.h5")
    np.testing.assert_array_equal(plain.get_weights()[0], trained[0])
    plain.set_weights([2 * each for each in trained])
    plain.save_weights(tmp_path / "theirs.weights.h5")
    model.load_weights(tmp_path / "theirs.weights.h5")
    np.testing.assert_array_equal(model.get_weights()[0], 2 * trained[0])


@pytest.mark.feature("The `mod` row layout in both layers")
def test_rows_are_dealt_out(strategy):
    with strategy.scope():
        table = tfdist.embedding.Embedding(ROWS, DIM, partition_strategy="mod")
        table.build()
    whole = np.array(table.embeddings)
    for first, shard in enumerate(shards(table.embeddings)):
        np.testing.assert_array_equal(shard.numpy(), whole[first::2])
    names = [v.spec.name for v in strategy.placement_report().variables]
    assert f"{table.embeddings.path}[1::2]" in names


@pytest.mark.feature("A checkpoint of `mod` restores into `div`, and back")
@pytest.mark.parametrize(
    ("partition_strategy", "after"),
    [("div", "mod"), ("mod", "whole"), ("mod", "thirds")],
)
def test_reshard_on_restore(
    strategy, ids, targets, tmp_path, partition_strategy, after
):
    def table(after):
        options = {"partition_strategy": after}
        if after == "whole":
            return layers.Embedding(ROWS, DIM)
        if after == "thirds":
            three = tfdist.FixedShardsPartitioner(3)
            options = {"partition_strategy": "mod", "partitioner": three}
        return tfdist.embedding.Embedding(ROWS, DIM, **options)

    with strategy.scope():
        saved = model_of(table(partition_strategy), keras.optimizers.Adam)
        model = model_of(table(after), keras.optimizers.Adam)
        model.optimizer.build(model.trainable_variables)
    train(saved, ids, targets)
    for source, target in ((saved, model), (model, saved)):
        path = tf.train.Checkpoint(model=source).save(str(tmp_path / "checkpoint"))
        assert dict(tf.train.list_variables(path))[
            "model/optimizer/_trainable_variables/0/.ATTRIBUTES/VARIABLE_VALUE"
        ] == [ROWS, DIM]
        for each in state_of(target):
            each.assign(tf.zeros(each.shape, each.dtype))
        tf.train.Checkpoint(model=target).restore(path).assert_consumed()
        assert_alike(state_of(target), state_of(source))
    assert np.abs(np.array(model.optimizer.variables[2])).max() > 0


@pytest.mark.feature("`clone_model`, `from_config`, `.keras` keep `partition_strategy`")
@pytest.mark.parametrize(
    "layer", [tfdist.embedding.Embedding, tfdist.embedding.EmbeddingBag]
)
def test_partition_strategy_is_kept(strategy, layer, tmp_path, partition_strategy):
    config = layer(ROWS, DIM, partition_strategy=partition_strategy).get_config()
    json.dumps(config)
    assert layer.from_config(config).partition_strategy == partition_strategy
    with strategy.scope():
        table = layer(ROWS, DIM, partition_strategy=partition_strategy)
        model = keras.Sequential([keras.Input((SIZE,), dtype="int64"), table])
        model.save(tmp_path / "model.keras")
        clone = keras.models.clone_model(model)
        loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (clone, loaded):
        assert each.layers[0].partition_strategy == partition_strategy
        layout = each.weights[0]._value.layout
        assert layout.partition_strategy == partition_strategy


@pytest.mark.in_part("mod")
@pytest.mark.feature("`.keras` of `tfdist.embedding.Embedding`, loaded without tfdist")
def test_keras_file_without_tfdist(
    strategy, ids, tmp_path, run_program, partition_strategy
):
    with strategy.scope():
        table = tfdist.embedding.Embedding(
            ROWS, DIM, partition_strategy=partition_strategy
        )
        model = model_of(table, keras.optimizers.SGD)
    model.save(tmp_path / "model.keras")
    said = run_program(
        "load_embedding_without_tfdist.py", tmp_path / "model.keras", tmp_path / "t.npy"
    )
    assert said.returncode == 0, said.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), model.get_weights()[0])


@pytest.mark.feature(
    "`tfdist.embedding.EmbeddingBag` saved as `.keras`, and loaded in the scope"
)
def test_bag_is_loaded_in_the_scope(strategy, bags, tmp_path):
    with strategy.scope():
        model = bag_model(
            tfdist.embedding.EmbeddingBag(ROWS, DIM, "sqrtn"), "dense", False
        )
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(shards(loaded.layers[1].embeddings)) == 2
    x = as_dense(bags)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)


@pytest.mark.feature("A lookup in a variable in shards finds out its row layout")
def test_lookup_knows_how_a_variable_is_split(strategy, bags, partition_strategy):
    halves = tfdist.FixedShardsPartitioner(2)
    with strategy.scope(), tfdist.partition_variables(halves, partition_strategy):
        table = keras.Variable(np.arange(ROWS * DIM, dtype="float32").reshape(ROWS, -1))
    look_up = tfdist.embedding.embedding_lookup_sparse_with_distributed_aggregation
    ones = [np.ones(len(ids)) for ids in bags]
    np.testing.assert_array_equal(
        look_up(table, as_ragged(bags), None, combiner="sum"),
        combined(np.array(table), bags, ones, "sum"),
    )
    other = {"div": "mod", "mod": "div"}[partition_strategy]
    words = f"is split with partition_strategy='{partition_strategy}'; received"
    with pytest.raises(ValueError, match=words):
        look_up(table, as_ragged(bags), None, other)


@pytest.mark.feature(
    "An id that is out of range", "no", "the error names the table and the ids"
)
@pytest.mark.parametrize("wrong", [ROWS, -2])
@pytest.mark.parametrize("kind", ["embedding", "bag"])
def test_id_out_of_range(strategy, ids, targets, kind, wrong):
    with strategy.scope():
        if kind == "bag":
            layer = tfdist.embedding.EmbeddingBag(ROWS, DIM)
            model = keras.Sequential(
                [keras.Input((SIZE,), dtype="int64"), layer, layers.Dense(1)]
            )
            model.compile("sgd", "mse")
        else:
            model = model_of(
                tfdist.embedding.Embedding(ROWS, DIM), keras.optimizers.SGD
            )
    ids[3, 2] = wrong
    words = rf"ids of the table .*embedding.* must be from 0 to {ROWS - 1}.*\[{wrong}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        train(model, ids, targets)


@pytest.mark.feature(
    "A bag with an invalid rank or combiner", "no", "the error lists what is allowed"
)
def test_arguments_of_a_bag(strategy):
    with raises(ValueError, "combiner", "mean, sqrtn, sum"):
        tfdist.embedding.EmbeddingBag(ROWS, DIM, "max")
    with raises(ValueError, "partition_strategy", "mod, div"):
        tfdist.embedding.Embedding(ROWS, DIM, partition_strategy="rows")
    with raises(ValueError, "input_dim"):
        tfdist.embedding.EmbeddingBag(0, DIM)
    with strategy.scope():
        layer = tfdist.embedding.EmbeddingBag(ROWS, DIM)
    with raises(ValueError, "[batch, any]"):
        layer(tf.constant([1, 2]))
    with raises(ValueError, "weights", "shape"):
        layer(tf.constant([[1, 2]]), weights=tf.ones([1, 3]))
