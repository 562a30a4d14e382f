"""Blocks that workers keep: what moves and when, and that nothing is lost."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.parameter_server.caching import worker_cache
from tfdist.parameter_server.caching.report import WhenChangedReport
from tfdist.parameter_server.fit import worker_function

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
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH * BATCHES, 20)).astype("float32")
    return x, x[:, :10].argmax(axis=1)


def compiled(strategy, model, optimizer, **options):
    with strategy.scope():
        made = model()
        made.compile(
            optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **options,
        )
    return made


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
    """One call of all steps runs on one worker, so that its result is determined."""
    exchange(3.0, max_age=9)
    make = OPTIMIZERS[optimizer]
    with strategy.scope():
        model = compiled(strategy, mlp, make(), steps_per_execution=BATCHES)
    alone = mlp()
    alone.set_weights(model.get_weights())
    alone.compile(
        make(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    ours = model.fit(*data(), **options).history
    theirs = alone.fit(*data(), **options).history
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-4)
    for mine, other in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)
    fetched, pushed = moves(strategy, model)
    # The first fetch has nothing to push, and the last push has nothing to fetch for.
    assert pushed == fetched
    kernels = fetched[0], fetched[4]
    assert all(BATCHES // 9 <= each < BATCHES for each in kernels)


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
    constructor = worker_cache.Kept.__init__

    def init(self, specs):
        constructor(self, specs)
        made.append(self)

    monkeypatch.setattr(worker_cache.Kept, "__init__", init)
    exchange(1.0)
    model = sinking(strategy)
    x = np.zeros((BATCH * 5 + 3, 1), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, x))
    odd = dataset.batch(BATCH, drop_remainder=True).concatenate(
        dataset.take(3).batch(3)
    )
    model.fit(odd, epochs=2, verbose=0)
    np.testing.assert_array_equal(model.height.numpy(), np.full((3, 2), 1 - 2 * 6))
    assert len(made) == 1


@averages_of_the_last
def test_shards_are_blocks_and_rows_move_in_each_step(strategy, exchange):
    exchange(2.0)
    with strategy.scope():
        inputs = keras.Input((20,))
        table = tfdist.Embedding(50, 6)(keras.ops.cast(inputs > 0, "int32"))
        split = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
        with tfdist.partition_variables(split):
            outputs = layers.Dense(10)(layers.Flatten()(table))
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.Adam(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    losses = model.fit(*data(), batch_size=BATCH, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    report = strategy.exchange_report()
    names = [each.name for each in report.blocks]
    assert sum("kernel" in each for each in names) == 2
    assert any("embedding" in each for each in report.in_each_step)
    assert not any("embedding" in each for each in names)


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


def test_a_threshold_of_zero_is_todays_step(strategy, exchange, monkeypatch):
    found = []
    constructor = worker_function.StepGraph.__init__

    def init(self, *args, **kwargs):
        constructor(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(worker_function.StepGraph, "__init__", init)
    graphs = []
    for each in (tfdist.WhenChanged(0), tfdist.Every(1)):
        monkeypatch.setattr(strategy, "exchange", each)
        compiled(strategy, mlp, "adam").fit(*data(), batch_size=BATCH, verbose=0)
        graphs.append(found.pop())
        assert found == []
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
    with pytest.raises(
        tfdist.AsynchronousTrainingError, match="uses no optimizer that"
    ):
        model.fit(x, y[:, None].astype("float32"), batch_size=BATCH, verbose=0)


def test_other_policies_are_refused(strategy, exchange):
    exchange(1.0)
    with pytest.raises(ValueError, match=r"exchange=WhenChanged\(threshold=1\.0"):
        strategy.consistency = tfdist.BoundedStaleness(2)
