"""Stages that do not wait for each other, on the logical devices of one process."""

import contextlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.research.model_parallel.pipeline.errors import PipelineError

from .pipeline_cases import assert_close, logical_devices  # noqa: F401

pytestmark = pytest.mark.own_process

ROWS, BATCH = 40, 8
optimizers = keras.optimizers


def chain():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(12, "relu", name="a"),
            layers.Dense(12, "tanh", name="b"),
            layers.Dense(12, "relu", name="c"),
            layers.Dense(3, name="d"),
        ]
    )


def with_skips():
    """Some of what a stage takes is of a stage that is not the one before it."""
    layers = keras.layers
    image = keras.Input((6,))
    words = keras.Input((4,), dtype="int32")
    x = first = layers.Dense(8, "relu", name="a")(image)
    x = layers.BatchNormalization(name="norm")(layers.Dense(8, "relu", name="b")(x))
    x = layers.Dense(8, "relu", name="c")(x + first)
    y = layers.Embedding(11, 8, mask_zero=True, name="words")(words)
    y = layers.LSTM(8, name="lstm")(y)
    x = layers.concatenate([x, first, y, image], name="all")
    side = layers.Dense(1, name="side")(first)
    return keras.Model([image, words], [layers.Dense(3, name="d")(x), side])


SKIPS = [["a"], ["b", "norm", "side", "words"], ["c", "lstm"], ["all", "d"]]


def data_of(model, rows=ROWS):
    generator = np.random.default_rng(3)
    x = [
        generator.integers(0, 11, (rows, *each.shape[1:])).astype("int32")
        if each.dtype == "int32"
        else generator.normal(size=(rows, *each.shape[1:])).astype("float32")
        for each in model.inputs
    ]
    y = [
        generator.normal(size=(rows, each.shape[-1])).astype("float32")
        for each in model.outputs
    ]
    return (x, y) if len(x) > 1 else (x[0], y[0])


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def build(make, strategy=None, optimizer=momentum):
    keras.utils.set_random_seed(7)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        model.compile(optimizer(), "mse", metrics=["mae"] * len(model.outputs))
    return model


def fit(model, x, y, batch=BATCH, **options):
    options = {"epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(x, y, batch_size=batch, **options).history


class Replay:
    """The same written down: each stage with its own optimizer, and dicts for queues."""

    def __init__(self, stages, lag):
        plain = build(chain)
        self.stages = [[plain.get_layer(n) for n in names] for names in stages]
        self.optimizers = [keras.optimizers.SGD(0.05, momentum=0.9) for _ in stages]
        self.lag, self.last = lag, len(stages) - 1

    def weights(self, stage):
        return [w for layer in self.stages[stage] for w in layer.trainable_weights]

    def run(self, x, y, begins=True):
        """Passes all batches through; returns the mean of the last stage's losses.

        Args:
            begins: Whether they begin an epoch, whose first batch passes alone, so that
                callbacks have logs.
        """
        if begins and len(x) > 1:
            first = self.run(x[:1], y[:1])
            others = self.run(x[1:], y[1:], begins=False)
            return np.average([first, others], weights=[1, len(x) - 1])
        taken, back, losses = {(0, b): tf.constant(x[b]) for b in range(len(x))}, {}, []
        for step in range(len(x) + 2 * self.lag * self.last):
            made, updates = {}, []
            for stage in range(self.last + 1):
                forward = stage, step - self.lag * stage
                if forward in taken and stage < self.last:
                    output = keras.Sequential(self.stages[stage])(taken[forward])
                    made[stage + 1, forward[1]] = output
                batch = step - self.lag * (2 * self.last - stage)
                if (stage, batch) in taken:
                    updates.append(
                        (stage, batch, self.backward(stage, batch, taken, back, y))
                    )
            for stage, batch, (loss, *gradients, passed) in updates:
                self.optimizers[stage].apply(gradients, self.weights(stage))
                back[stage - 1, batch] = passed
                losses += [float(loss)] if stage == self.last else []
            # What a step makes is there for later ones.
            taken |= made
        return np.mean(losses)

    def backward(self, stage, batch, taken, back, y):
        given = taken[stage, batch]
        with tf.GradientTape() as tape:
            tape.watch(given)
            output = keras.Sequential(self.stages[stage])(given)
            if stage == self.last:
                loss = tf.reduce_mean((output - y[batch]) ** 2)
            else:
                loss = tf.reduce_sum(output * back[stage, batch])
        return [loss, *tape.gradient(loss, [*self.weights(stage), given])]


def in_batches(values):
    return [values[at : at + BATCH] for at in range(0, len(values), BATCH)]


@pytest.mark.parametrize(
    ("stages", "staleness", "microbatches", "schedule"),
    [
        ([["a", "b"], ["c", "d"]], 1, 1, "gpipe"),
        ([["a", "b"], ["c", "d"]], 2, 4, "1f1b"),
        ([["a"], ["b", "c"], ["d"]], 1, 3, "gpipe"),
        ([["a"], ["b", "c"], ["d"]], 9, 2, "gpipe"),
        ([["a", "b", "c", "d"]], 1, 2, "1f1b"),
    ],
)
def test_weights_are_those_of_features_replay(
    stages, staleness, microbatches, schedule
):
    strategy = tfdist.research.PipelineStrategy(
        stages, microbatches, schedule, max_staleness=staleness
    )
    model = build(chain, strategy)
    x, y = data_of(model)
    replay = Replay(stages, min(staleness, 2))
    history = fit(model, x, y)
    expected = [replay.run(in_batches(x), in_batches(y)) for _ in range(2)]
    np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)
    assert_weights(model, replay)
    assert int(model.optimizer.iterations) == 2 * ROWS // BATCH


def assert_weights(model, replay):
    expected = [w for s in range(replay.last + 1) for w in replay.weights(s)]
    for one, other in zip(model.trainable_weights, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=one.path)


class At(keras.callbacks.Callback):
    def __init__(self, batch, do):
        super().__init__()
        self.batch, self.do = batch, do

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            self.do(self.model)


STAGES = [["a"], ["b", "c"], ["d"]]


def test_a_checkpoint_is_written_when_no_batch_is_under_way(tmp_path):
    strategy = tfdist.research.PipelineStrategy(STAGES, 2, max_staleness=1)
    model, replay = build(chain, strategy), Replay(STAGES, 1)
    x, y = data_of(model)
    kept = tmp_path / "kept.keras"
    fit(model, x, y, epochs=1, callbacks=[At(2, lambda model: model.save(kept))])
    x, y = in_batches(x), in_batches(y)
    replay.run(x[:3], y[:3])
    saved = keras.models.load_model(kept)
    assert_weights(saved, replay)
    assert int(saved.optimizer.iterations) == 3
    replay.run(x[3:], y[3:], begins=False)
    assert_weights(model, replay)


def test_an_epoch_that_ends_early_has_counted_its_batches():
    strategy = tfdist.research.PipelineStrategy(STAGES, 2, max_staleness=2)
    model, replay = build(chain, strategy), Replay(STAGES, 2)
    x, y = data_of(model)
    stop = At(1, lambda model: setattr(model, "stop_training", True))
    history = fit(model, x, y, callbacks=[stop])
    expected = replay.run(in_batches(x)[:2], in_batches(y)[:2])
    np.testing.assert_allclose(history["loss"], [expected], rtol=1e-5)
    assert_weights(model, replay)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_callbacks_see_the_last_batch_of_each_epoch_and_none_of_an_earlier_one(
    steps_per_execution,
):
    model = build(chain, tfdist.research.PipelineStrategy(STAGES, 2, max_staleness=1))
    model.steps_per_execution = steps_per_execution
    x, y = data_of(model)
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda *_: seen.append([]),
        on_train_batch_end=lambda _, logs: seen[-1].append(logs["loss"]),
    )
    history = fit(model, x, y, epochs=2, callbacks=[watch])
    assert [each[-1] for each in seen] == pytest.approx(history["loss"], rel=1e-5)
    y[-1] = np.inf
    stop = keras.callbacks.TerminateOnNaN()
    history = fit(model, x, y, epochs=3, callbacks=[stop])
    assert history["loss"] == [np.inf]


def test_after_an_error_nothing_is_left_under_way():
    strategy = tfdist.research.PipelineStrategy(STAGES, 2, max_staleness=1)
    model = build(chain, strategy)
    x, y = data_of(model)

    def interrupt(model):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, x, y, callbacks=[At(3, interrupt)])
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.05), "mse")
    plain = build(chain)
    plain.set_weights(model.get_weights())
    plain.compile(keras.optimizers.SGD(0.05), "mse")
    for each in (model, plain):
        fit(each, x, y, batch=ROWS)
    assert_close(model.get_weights(), plain.get_weights(), rtol=1e-4, atol=1e-6)


def test_data_of_unknown_length_in_batches_of_two_sizes_and_single_batches():
    strategy = tfdist.research.PipelineStrategy(STAGES, 2, max_staleness=1)
    model, replay = build(chain, strategy), Replay(STAGES, 1)
    x, y = data_of(model, ROWS - 2)
    batches = list(zip(in_batches(x), in_batches(y), strict=True))

    def generate():
        yield from batches

    spec = [tf.TensorSpec([None, each.shape[1]]) for each in (x, y)]
    dataset = tf.data.Dataset.from_generator(generate, output_signature=tuple(spec))
    model.fit(dataset, epochs=1, verbose=0)
    replay.run(*zip(*batches[:-1], strict=True))
    # The last one, which is smaller, passes alone.
    replay.run(*zip(*batches[-1:], strict=True))
    assert_weights(model, replay)
    logs = model.train_on_batch(*batches[0], return_dict=True)
    loss = replay.run(*zip(*batches[:1], strict=True))
    assert float(logs["loss"]) == pytest.approx(loss, rel=1e-4)
    assert_weights(model, replay)


def dropped():
    layers = keras.layers
    image = keras.Input((6,))
    x = layers.Dense(8, "relu", name="a", activity_regularizer="l2")(image)
    x = layers.Dropout(0.5, seed=3, name="b")(x)
    x = layers.Dropout(0.5, seed=4, name="c")(
        layers.Dense(8, kernel_regularizer="l1")(x)
    )
    return keras.Model(image, layers.Dense(3, name="d")(x))


@pytest.mark.parametrize(
    ("make", "stages", "microbatches"),
    [(with_skips, SKIPS, 1), (with_skips, 3, 1), (dropped, 3, 1), (chain, 4, 4)],
)
@pytest.mark.parametrize("staleness", [1, 2])
def test_with_one_batch_an_epoch_it_is_one_process(
    make, stages, microbatches, staleness
):
    strategy = tfdist.research.PipelineStrategy(
        stages, microbatches, max_staleness=staleness
    )
    ours, plain = (build(make, s, keras.optimizers.Adam) for s in (strategy, None))
    x, y = data_of(ours)
    histories = [fit(each, x, y, batch=ROWS, epochs=3) for each in (ours, plain)]
    assert_close(ours.get_weights(), plain.get_weights(), rtol=1e-3, atol=1e-5)
    for name in histories[1]:
        np.testing.assert_allclose(histories[0][name], histories[1][name], rtol=1e-4)
    assert int(ours.optimizer.iterations) == 3


def test_skips_and_targets_are_of_the_same_batch():
    """With a rate this small an epoch changes weights by the sum of the gradients."""
    strategy = tfdist.research.PipelineStrategy(SKIPS, 2, max_staleness=1)
    rate = 1e-3
    ours, plain = (
        build(with_skips, each, lambda: keras.optimizers.SGD(rate))
        for each in (strategy, None)
    )
    for each in (ours, plain):
        each.get_layer("norm").trainable = False
    x, y = data_of(ours)
    before = [w.numpy() for w in plain.trainable_weights]
    histories = [fit(each, x, y, batch=4, epochs=1) for each in (ours, plain)]
    for name in histories[1]:
        np.testing.assert_allclose(histories[0][name], histories[1][name], rtol=1e-2)
    for old, one, other in zip(
        before, ours.trainable_weights, plain.trainable_weights, strict=True
    ):
        change = other.numpy() - old
        assert np.abs(one.numpy() - other.numpy()).max() < 0.05 * np.abs(change).max()


class Meeting(keras.layers.Layer):
    """Computes a batch only while another stage computes the one that it gave it."""

    def __init__(self, meet, **options):
        super().__init__(**options)
        self.meet = [meet]

    def call(self, x):
        met = tf.numpy_function(self.meet[0], [x], tf.float32)
        met.set_shape(x.shape)
        return x + tf.stop_gradient(met - x)


def test_stages_compute_at_the_same_time():
    batches, meeting = 6, threading.Barrier(2)
    waited = []

    def meet(stage):
        def wait(x):
            batch = int(x[0, 0])
            # While the pipe fills and drains the other stage has nothing to do.
            if 2 <= batch + stage < batches and (stage, batch) not in waited:
                waited.append((stage, batch))
                meeting.wait(timeout=60)
            return x

        return wait

    strategy = tfdist.research.PipelineStrategy(
        [["one"], ["two", "out"]], 1, max_staleness=1
    )
    with strategy.scope():
        image = keras.Input((1,))
        x = Meeting(meet(0), name="one")(image)
        x = Meeting(meet(1), name="two")(x)
        model = keras.Model(image, keras.layers.Dense(1, name="out")(x))
        model.compile("sgd", "mse")
    x = np.arange(batches, dtype="float32")[:, None]
    # The first batch passes alone.
    waited += [(0, 0), (1, 0)]
    fit(model, x, 0 * x, batch=1, epochs=1)
    assert len(waited) == 2 + 2 * (batches - 2)


@pytest.mark.parametrize(
    ("optimizer", "what"),
    [
        (lambda: optimizers.LossScaleOptimizer(optimizers.SGD()), "loss scale"),
        (
            lambda: optimizers.SGD(gradient_accumulation_steps=2),
            "gradient_accumulation_steps=2",
        ),
        (lambda: optimizers.SGD(global_clipnorm=1.0), "global_clipnorm=1.0"),
    ],
)
def test_optimizers_that_count_on_one_batch_are_refused(optimizer, what):
    strategy = tfdist.research.PipelineStrategy(2, max_staleness=1)
    with strategy.scope():
        model = chain()
        model.compile(optimizer(), "mse")
    with pytest.raises(PipelineError, match=what):
        fit(model, *data_of(model))
