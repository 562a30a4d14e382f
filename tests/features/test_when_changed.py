"""Blocks and rows that workers keep: what moves and when, and that nothing is lost."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import assert_alike, positions, trained_beside_one_process
from models import built_in_scope as compiled

import tfdist
from tfdist import _tf
from tfdist.graph.functions import all_nodes
from tfdist.graph.tasks import WORKER, task_at
from tfdist.parameter_server.caching.report import WhenChangedReport
from tfdist.parameter_server.exchange import kept
from tfdist.parameter_server.exchange.report import Exchanges

from ..support.raising import raises

pytestmark = [pytest.mark.parameter_server, pytest.mark.steps_write]

layers = keras.layers

BATCH, BATCHES = 8, 40

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": keras.optimizers.Adam,
}

# The slots of an optimizer are those of the last worker.
averages_of_the_last = pytest.mark.sets_own_value("momentum|velocity")


@pytest.fixture
def exchange(strategy, monkeypatch):
    def set_to(*arguments, **options):
        monkeypatch.setattr(
            strategy, "exchange", tfdist.WhenChanged(*arguments, **options)
        )

    return set_to


def mlp():
    return keras.Sequential(
        [
            keras.Input((20,)),
            layers.Dense(30, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(10),
        ]
    )


def data():
    return positions(BATCH * BATCHES)


def moves(strategy, model):
    """How often each trainable weight of a model was fetched, and pushed."""
    blocks = {each.name: each for each in strategy.exchange_report().blocks}
    mine = [blocks[each.path] for each in model.trainable_variables]
    return [each.fetched for each in mine], [each.pushed for each in mine]


class Sinking(keras.Model):
    """Each step takes 1 from its only weight, whatever it is."""

    def __init__(self):
        super().__init__()
        self.height = self.add_weight(shape=(3, 2), initializer="ones", name="height")

    def call(self, x):
        return x + keras.ops.sum(self.height)


def sinking(strategy):
    with strategy.scope():
        model = Sinking()
        model.compile(
            keras.optimizers.SGD(1.0), lambda _, y: keras.ops.mean(y, axis=-1)
        )
    return model


@averages_of_the_last
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_computes_what_one_process_does(strategy, exchange, optimizer):
    exchange(3.0, max_age=9)
    model, alone = trained_beside_one_process(
        strategy, mlp, OPTIMIZERS[optimizer], *data(), BATCH
    )
    assert_alike(model.get_weights(), alone.get_weights(), rtol=1e-3, atol=1e-5)
    fetched, pushed = moves(strategy, model)
    # The first fetch has nothing to push, and the last push has nothing to fetch for.
    assert pushed == fetched
    kernels = fetched[0], fetched[4]
    assert all(BATCHES // 9 <= each < BATCHES for each in kernels)


@pytest.mark.in_gate
def test_no_change_of_a_worker_is_lost(strategy, exchange, runs_on_workers):
    exchange(0.9, max_age=7)
    model = sinking(strategy)
    x = np.zeros((BATCH * BATCHES, 1), np.float32)
    with runs_on_workers(3 * BATCHES):
        model.fit(x, x, batch_size=BATCH, epochs=3, verbose=0)
    np.testing.assert_array_equal(
        model.height.numpy(), np.full((3, 2), 1 - 3 * BATCHES)
    )
    assert model.evaluate(x, x, batch_size=BATCH, verbose=0) == 6 * (1 - 3 * BATCHES)


def test_a_large_threshold_moves_a_block_once_per_epoch_and_worker(strategy, exchange):
    exchange(1e9, max_age=10**6)
    model = sinking(strategy)
    x = np.zeros((BATCH * BATCHES, 1), np.float32)
    model.fit(x, x, batch_size=BATCH, epochs=2, verbose=0)
    (fetched,), (pushed,) = moves(strategy, model)
    # The first step of a model is waited for, too.
    assert fetched == pushed <= 3 * strategy.num_replicas
    np.testing.assert_array_equal(
        model.height.numpy(), np.full((3, 2), 1 - 2 * BATCHES)
    )


@pytest.mark.parametrize("epochs", [1, 2])
def test_what_is_not_a_number_is_not_kept_back(strategy, exchange, epochs):
    exchange(1e9)
    model = sinking(strategy)
    x = np.zeros((BATCH * BATCHES, 1), np.float32)
    model.optimizer.learning_rate = np.nan
    model.fit(x, x, batch_size=BATCH, epochs=epochs, verbose=0)
    assert np.isnan(model.height.numpy()).all()


def test_an_age_moves_a_block_that_has_not_changed_much(strategy, exchange):
    exchange(1e9, max_age=4)
    with strategy.scope():
        model = compiled(strategy, mlp, "sgd", steps_per_execution=BATCHES)
    model.fit(*data(), batch_size=BATCH, verbose=0)
    fetched, _ = moves(strategy, model)
    # What begins with zeros has changed by any update.
    kernels = fetched[0], fetched[4]
    assert kernels == (BATCHES // 4, BATCHES // 4)


def test_what_others_add_counts(strategy, exchange, monkeypatch):
    exchange(1e6, max_age=10**6)
    model = sinking(strategy)
    x = np.zeros((BATCH * BATCHES, 1), np.float32)
    model.fit(x, x, batch_size=BATCH, verbose=0)
    with monkeypatch.context() as patch:
        patch.setattr(strategy.in_flight, "collect", lambda: None)

        def fetched_in_an_epoch():
            before = moves(strategy, model)[0][0]
            model.fit(x, x, batch_size=BATCH, verbose=0)
            return moves(strategy, model)[0][0] - before

        assert 1 <= fetched_in_an_epoch() <= strategy.num_replicas
        while fetched_in_an_epoch():
            """Until every worker has what it keeps."""
        model.height.value.counts.add([1e15, 0, 0])
        assert fetched_in_an_epoch() >= 1


def test_batches_of_other_shapes_share_what_a_worker_keeps(
    strategy, exchange, monkeypatch
):
    made = []
    constructor = kept.Kept.__init__

    def init(self, specs):
        constructor(self, specs)
        made.append(self)

    monkeypatch.setattr(kept.Kept, "__init__", init)
    exchange(1.0)
    model = sinking(strategy)
    x = np.zeros((BATCH * 5 + 3, 1), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, x))
    odd = dataset.batch(BATCH, drop_remainder=True).concatenate(
        dataset.take(3).batch(3)
    )
    model.fit(odd, epochs=2, verbose=0)
    np.testing.assert_array_equal(model.height.numpy(), np.full((3, 2), 1 - 2 * 6))
    assert len(made) == 2, "of weights, and of tables"


def recommender():
    """Two tables in shards, of users and items."""
    pair = keras.Input((2,), dtype="int32")
    both = [
        tfdist.embedding.Embedding(rows, 8)(pair[:, i])
        for i, rows in enumerate((50, 20))
    ]
    return keras.Model(pair, layers.Dense(1)(layers.Concatenate()(both)))


def ratings():
    """Ratings of items, of which a few are in most of them."""
    rng = np.random.default_rng(0)
    number = BATCH * BATCHES
    users = rng.integers(0, 50, number)
    items = np.minimum(rng.zipf(1.5, number), 20) - 1
    return np.stack([users, items], 1).astype("int32"), rng.normal(size=(number, 1))


@averages_of_the_last
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_that_stay_are_those_of_today(strategy, exchange, optimizer):
    models, losses, initial = [], [], None
    for threshold in (0, 50.0):
        exchange(threshold, max_age=13)
        with strategy.scope():
            model = recommender()
            model.compile(OPTIMIZERS[optimizer](), "mse", steps_per_execution=BATCHES)
        initial = initial or model.get_weights()
        model.set_weights(initial)
        options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
        losses.append(model.fit(*ratings(), **options).history["loss"])
        models.append(model)
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for today, mine in zip(*(each.get_weights() for each in models), strict=True):
        np.testing.assert_allclose(mine, today, rtol=1e-3, atol=1e-5)
    # In the order of creation: two shards of each of this model's two tables.
    tables = [it for it in strategy.exchange_report().blocks if it.looked_up][-4:]
    # Each row is fetched once at least, and popular ones not whenever they are looked up.
    pair = ratings()[0]
    different = len(np.unique(pair[:, 0])) + len(np.unique(pair[:, 1]))
    looked_up = sum(each.looked_up for each in tables)
    assert different <= sum(each.fetched for each in tables) < looked_up / 2


@pytest.fixture
def counting_rows(strategy):
    """Each look-up of a row takes 1/BATCH from it; returns the model and the batches."""

    def make(embedding):
        with strategy.scope():
            ids = keras.Input((3,), dtype="int32")
            table = embedding(10, 4, embeddings_initializer="ones")
            model = keras.Model(ids, layers.Flatten()(table(ids)))
            model.compile(
                keras.optimizers.SGD(1.0), lambda _, y: keras.ops.sum(y, axis=-1)
            )
        x = np.random.default_rng(0).integers(0, 9, (BATCH * BATCHES, 3))
        return model, table, x.astype("int32")

    return make


def after_lookups(x, epochs):
    """What the rows are then."""
    rows = 1 - epochs * np.bincount(x.ravel(), minlength=10) / BATCH
    return np.repeat(rows[:, None], 4, axis=1)


@pytest.mark.in_gate
def test_no_change_of_a_row_is_lost(counting_rows, exchange):
    exchange(0.9, max_age=7)
    model, table, x = counting_rows(tfdist.embedding.Embedding)
    model.fit(x, x, batch_size=BATCH, epochs=2, verbose=0)
    np.testing.assert_array_equal(table.get_weights()[0], after_lookups(x, epochs=2))


def test_rows_of_an_embedding_of_keras_stay(
    strategy, counting_rows, exchange, monkeypatch
):
    monkeypatch.setattr(strategy, "exchanges", Exchanges(2))
    exchange(1e9, max_age=10**6)
    model, table, x = counting_rows(layers.Embedding)
    model.fit(x, x, batch_size=BATCH, verbose=0)
    block = strategy.exchange_report().blocks[-1]
    assert (block.name, block.size) == (table.embeddings.path, 16)
    # The first step of a model is waited for, too.
    assert 9 <= block.fetched <= 2 * 9 * strategy.num_replicas < block.looked_up
    np.testing.assert_array_equal(table.get_weights()[0], after_lookups(x, epochs=1))
    # A prediction keeps nothing, and says nothing of what training does.
    model.predict(x, verbose=0)
    assert table.embeddings.path not in strategy.exchange_report().in_each_step


def test_all_functions_find_rows_in_one_place_if_steps_name_a_device(
    counting_rows, strategy, exchange, monkeypatch
):
    """As they name the GPU of a worker, whose functions use its CPU by default."""
    exchange(1e9)
    gpu = "/device:GPU:0"
    monkeypatch.setattr(type(strategy.extended), "worker_devices", (gpu,))
    traced = []
    told = _tf.leave_out_constant_folding

    def keep(function):
        traced.append(function)
        told(function)

    monkeypatch.setattr(_tf, "leave_out_constant_folding", keep)
    model, table, x = counting_rows(tfdist.embedding.Embedding)
    model.fit(x, x, batch_size=BATCH, verbose=0)
    np.testing.assert_array_equal(table.get_weights()[0], after_lookups(x, epochs=1))
    flush, *runs = ([*all_nodes(each.graph.as_graph_def())] for each in traced)
    assert all(any(node.device == gpu for node in nodes) for nodes in runs)
    for nodes in (flush, *runs):
        devices = {
            node.device
            for node in nodes
            if node.op.startswith(("VarHandle", "ResourceGather", "ResourceScatter"))
        }
        assert {each for each in devices if task_at(each) == WORKER} == {""}


def test_rows_that_a_step_draws_move_in_each_step(strategy, exchange):
    exchange(1.0)

    class Drawing(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = tfdist.embedding.Embedding(10, 4)

        def call(self, x):
            drawn = tf.random.uniform([8, 1], maxval=10, dtype=tf.int32)
            return x + keras.ops.sum(self.table(drawn), axis=-1)

    with strategy.scope():
        model = Drawing()
        model.compile("sgd", "mse")
    x = np.zeros((BATCH * BATCHES, 1), np.float32)
    model.fit(x, x, batch_size=BATCH, verbose=0)
    report = strategy.exchange_report()
    assert model.table.embeddings.path in " ".join(report.in_each_step)


def test_shards_are_blocks(strategy, exchange):
    exchange(2.0)
    with strategy.scope():
        split = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
        with tfdist.partition_variables(split):
            model = keras.Sequential([keras.Input((20,)), layers.Dense(10)])
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    losses = model.fit(*data(), batch_size=BATCH, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    names = {each.name for each in strategy.exchange_report().blocks}
    kernel = model.layers[0].kernel.path
    assert sum(each.startswith(f"{kernel}[") for each in names) == 2


def test_a_step_that_fails_leaves_what_others_have_changed(strategy, exchange):
    exchange(1e9)
    model = sinking(strategy)
    x = np.zeros((BATCH * BATCHES, 1), np.float32)
    model.fit(x, x, batch_size=BATCH, verbose=0)

    def fail(i, x, y):
        tf.debugging.assert_less(i, tf.constant(7, tf.int64), "too many")
        return x, y

    batches = tf.data.Dataset.from_tensor_slices((x, x)).batch(BATCH)
    with pytest.raises(tf.errors.OpError):
        model.fit(batches.enumerate().map(lambda i, b: fail(i, *b)), verbose=0)
    done = int(1 - BATCHES - model.height.numpy()[0, 0])
    assert 0 <= done <= 7
    model.fit(x, x, batch_size=BATCH, verbose=0)
    np.testing.assert_array_equal(
        model.height.numpy(), np.full((3, 2), 1 - 2 * BATCHES - done)
    )


def test_a_threshold_of_zero_is_todays_step(strategy, step_graphs, monkeypatch):
    graphs = []
    for each in (tfdist.WhenChanged(0), tfdist.ExchangeEvery(1)):
        monkeypatch.setattr(strategy, "exchange", each)
        compiled(strategy, mlp, "adam").fit(*data(), batch_size=BATCH, verbose=0)
        graphs.append(step_graphs.pop())
        assert step_graphs == []
    zero, today = graphs
    sent = [sorted(len(each.outputs) for each in it.messages) for it in graphs]
    assert sent[0] == sent[1]
    assert zero.size == today.size


def test_a_report_says_what_has_moved(strategy, exchange):
    exchange(3.0)
    model = compiled(strategy, mlp, "sgd")
    model.fit(*data(), batch_size=BATCH, verbose=0)
    report = strategy.exchange_report()
    assert isinstance(report, WhenChangedReport)
    assert 0 < report.share < 1
    assert model.layers[0].kernel.path in str(report)
    assert any("moving_mean" in each for each in report.in_each_step)


def test_a_step_without_an_optimizer_of_the_model_is_refused(strategy, exchange):
    exchange(1.0)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)

        class Own(keras.Sequential):
            def train_step(self, batch):
                x, y = batch
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(x) - y) ** 2)
                gradients = tape.gradient(loss, self.trainable_variables)
                optimizer.apply(gradients, self.trainable_variables)
                return {"loss": loss}

        model = Own([keras.Input((20,)), layers.Dense(1)])
        optimizer.build(model.trainable_variables)
        model.compile("sgd", "mse")
    x, y = data()
    with raises(tfdist.errors.AsynchronousTrainingError, "no optimizer"):
        model.fit(x, y[:, None].astype("float32"), batch_size=BATCH, verbose=0)


def test_other_policies_are_refused(strategy, exchange):
    exchange(1.0)
    with raises(ValueError, "WhenChanged(threshold=1.0"):
        strategy.consistency = tfdist.BoundedStaleness(2)
