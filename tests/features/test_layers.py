"""Layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense
from models import assert_alike, compiled, mlp, row

layers = keras.layers
STEPS = 8


def image_model():
    return [
        layers.Reshape((2, 2, 1)),
        layers.Conv2D(4, 2, padding="same", activation="tanh"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        Dense(1),
    ]


def on_sequence(*inner):
    return [layers.Reshape((2, 2)), *inner, layers.Flatten(), Dense(1)]


class SelfAttention(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 3, dropout=0.1, seed=1)

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x, training=False):
        return self.attention(x, x, training=training)


class StepCounter(layers.Layer):
    """Has a weight that is not trained, as Keras's guide shows it."""

    def build(self, shape):
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.total.assign_add(1.0)
        return x


LAYERS = [
    row("Dense", lambda: [Dense(8, "relu"), Dense(1)]),
    row("Conv2D", image_model, "`Conv2D`, `MaxPooling2D`"),
    row(
        "BatchNormalization",
        lambda: [Dense(4), layers.BatchNormalization(), Dense(1)],
        "`BatchNormalization`",
        "approximate",
        "moving statistics follow all workers' batches in order of arrival",
        synchronous=(
            "approximate",
            "normalizes with its replica's examples; with all if `synchronized=True`",
        ),
    ),
    row(
        "synchronized",
        lambda: [Dense(4), layers.BatchNormalization(synchronized=True), Dense(1)],
        "`BatchNormalization(synchronized=True)`",
        on_ps="like `BatchNormalization`: each step runs on one worker",
    ),
    row(
        "Dropout",
        lambda: [Dense(8), layers.Dropout(0.2, seed=1), Dense(1)],
        on_ps="two workers may draw the same mask, for different batches",
    ),
    row(
        "GaussianNoise",
        lambda: [layers.GaussianNoise(0.1, seed=1), Dense(1)],
        "`GaussianNoise` and other random layers",
        on_ps="like `Dropout`",
    ),
    row("LSTM", lambda: on_sequence(layers.LSTM(4))),
    row("GRU", lambda: on_sequence(layers.GRU(4, return_sequences=True))),
    row(
        "Bidirectional",
        lambda: on_sequence(layers.Bidirectional(layers.LSTM(3, dropout=0.1, seed=1))),
        "`Bidirectional`, with dropout",
    ),
    row(
        "LayerNormalization",
        lambda: [Dense(4), layers.LayerNormalization(), Dense(1)],
    ),
    row("MultiHeadAttention", lambda: on_sequence(SelfAttention())),
    row(
        "StepCounter",
        lambda: [StepCounter(), Dense(1)],
        "A layer of your own that counts",
    ),
    row(
        "regularizers",
        lambda: [
            Dense(4, kernel_regularizer="l2", activity_regularizer="l1"),
            Dense(1, bias_regularizer="l1"),
        ],
        "Regularizers",
    ),
    row(
        "constraints",
        lambda: [
            Dense(4, kernel_constraint=keras.constraints.MaxNorm(0.5)),
            Dense(1, kernel_constraint="non_neg"),
        ],
        "Constraints",
        on_ps="they hold up to the last few updates",
    ),
]


# Each replica of a synchronous strategy draws its own noise, or looks at its own batch.
DIFFER_BY_REPLICA = {
    "BatchNormalization",
    "Dropout",
    "GaussianNoise",
    "Bidirectional",
    "MultiHeadAttention",
}


@pytest.mark.in_gate("Dropout")
@pytest.mark.parametrize("make", LAYERS)
def test_layer(request, strategy, regression, is_synchronous, trains, make):
    """Steps one by one are those of Keras, and the loss of `fit` falls."""
    keras.utils.set_random_seed(0)
    exact = request.node.callspec.id not in DIFFER_BY_REPLICA
    if not is_synchronous:
        assert_steps_are_those_of_keras(strategy, make, regression)
    _, history = trains(
        lambda: compiled(*make()), *regression, epochs=6, steps=6 * STEPS, exact=exact
    )
    assert history["loss"][-1] < history["loss"][0]


def assert_steps_are_those_of_keras(strategy, make, regression):
    with strategy.scope():
        model = compiled(*make())
    plain = compiled(*make())
    plain.set_weights(model.get_weights())
    for _ in range(3):
        logs, expected = (m.train_on_batch(*regression) for m in (model, plain))
        assert logs == pytest.approx(expected, rel=1e-4)
    assert_alike(model.get_weights(), plain.get_weights(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(
        model.predict(regression[0], batch_size=10, verbose=0),
        plain.predict(regression[0], batch_size=10, verbose=0),
        rtol=1e-3,
        atol=1e-4,
    )


class PairCounter(StepCounter):
    """Adds a number to each of two."""

    def build(self, shape):
        self.total = self.add_weight(shape=(2,), initializer="zeros", trainable=False)

    def call(self, x):
        self.total.assign(1.0 + self.total)
        return x


@pytest.mark.in_gate
@pytest.mark.parametrize("counter_class", [StepCounter, PairCounter])
def test_layer_counts_every_step(strategy, regression, counter_class):
    with strategy.scope():
        counter = counter_class()
        model = compiled(counter, Dense(1))
    model.fit(*regression, batch_size=4, epochs=5, verbose=0)
    assert np.all(counter.total.numpy() == 5 * 16)


@pytest.mark.parameter_server
@pytest.mark.steps_write
def test_constraints_are_computed_on_the_ps(strategy, regression, sent):
    x, y = regression
    with strategy.scope():
        positive = Dense(8, kernel_constraint="non_neg")
        short = Dense(1, kernel_constraint=keras.constraints.MaxNorm(0.5))
        model = compiled(positive, short, optimizer=keras.optimizers.SGD(0.001))
    model.fit(x, -y, batch_size=8, epochs=5, verbose=0)
    assert positive.get_weights()[0].min() >= -0.01
    assert np.linalg.norm(short.get_weights()[0]) <= 0.55

    clips = [
        op
        for op in sent.functions[0].graph.get_operations()
        if op.type == "Maximum" and f"/{model.optimizer.name}/" in op.name
    ]
    assert clips
    assert {tf.DeviceSpec.from_string(op.device).job for op in clips} == {"ps"}


ROWS, WIDTH = 1000, 6


class OneHotEmbedding(layers.Embedding):
    """With a dense gradient: Keras's own squares those of a repeated id one by one."""

    def call(self, ids):
        return keras.ops.matmul(keras.ops.one_hot(ids, self.input_dim), self.embeddings)


def embedding_model(optimizer, embedding=layers.Embedding):
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            embedding(ROWS, WIDTH),
            layers.Flatten(),
            Dense(1),
        ]
    )
    model.compile(optimizer, "mse")
    return model


@pytest.fixture
def words():
    random = np.random.default_rng(0)
    ids = random.integers(0, 20, size=(64, 3)).astype("int32")
    return ids, ids.sum(axis=1, keepdims=True).astype("float32") / 30


@pytest.mark.feature(
    "`Embedding`",
    "approximate",
    "with Adam, Adagrad or RMSprop, the gradients of an id that a batch repeats are summed, "
    "then squared; one process squares each",
    synchronous="yes",
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_embedding(strategy, words, is_synchronous, trains, optimizer):
    if not is_synchronous:
        assert_gradients_of_an_id_are_summed(strategy, words, optimizer)
    _, history = trains(
        lambda: embedding_model(optimizer), *words, epochs=4, steps=4 * STEPS
    )
    assert history["loss"][-1] < history["loss"][0]


def assert_gradients_of_an_id_are_summed(strategy, words, optimizer):
    with strategy.scope():
        model = embedding_model(optimizer)
    plain = embedding_model(optimizer, OneHotEmbedding)
    plain.set_weights(model.get_weights())
    for _ in range(3):
        for each in (model, plain):
            each.train_on_batch(*words)
    assert_alike(model.get_weights(), plain.get_weights(), rtol=1e-4, atol=1e-5)


def is_used(tensor):
    return any(
        op.type != "Identity" or is_used(op.outputs[0]) for op in tensor.consumers()
    )


def done_to(variable, function):
    """The types of the operations that take or use a variable's value."""
    inside = [i for o, i in function.graph.captures if o is variable.value.handle]
    return {
        op.type
        for handle in inside
        for op in handle.consumers()
        # Keras reads the whole value for its shape, which is known, and drops it.
        if not op.outputs or is_used(op.outputs[0])
    }


@pytest.mark.in_gate("sgd")
@pytest.mark.parameter_server
@pytest.mark.feature("`Embedding` sends only the rows looked up (SGD, Adagrad)")
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_only_rows_of_an_embedding_travel(strategy, words, sent, in_rounds, optimizer):
    with strategy.scope():
        model = embedding_model(optimizer)
    model.fit(*words, batch_size=8, verbose=0)
    (function,) = sent.functions
    table, kernel = model.layers[0].embeddings, model.layers[2].kernel
    done = done_to(table, function)
    assert done == {"ResourceGather"} | (
        set() if in_rounds else {"ResourceScatterNdSub"}
    )
    assert "ReadVariableOp" in done_to(kernel, function)


@pytest.mark.in_gate
@pytest.mark.feature("`StringLookup` inside the model")
def test_string_lookup(trains):
    x = np.array([["a"], ["b"], ["c"], ["b"]] * 8)
    y = np.float32([[1], [2], [0], [2]] * 8)

    def build(vocabulary):
        model = keras.Sequential(
            [
                keras.Input((1,), dtype="string"),
                layers.StringLookup(vocabulary=vocabulary, output_mode="one_hot"),
                Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model, history = trains(
        lambda: build(["a", "b"]), data, batch_size=None, epochs=5, steps=5 * 4
    )
    assert history["loss"][-1] < history["loss"][0]
    kernel, bias = model.get_weights()
    prediction = model.predict(tf.constant(x[:3]), verbose=0)
    np.testing.assert_allclose(prediction, kernel[[1, 2, 0]] + bias, rtol=1e-5)


@pytest.mark.feature("`TextVectorization` inside the model")
def test_text_vectorization(trains):
    texts = ["good good film", "bad film", "a good one", "a bad one"] * 8
    y = np.float32([[1], [0], [1], [0]] * 8)

    def build():
        vectorize = layers.TextVectorization(output_mode="count")
        vectorize.adapt(texts)
        model = keras.Sequential(
            [keras.Input((1,), dtype="string"), vectorize, Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    data = tf.data.Dataset.from_tensor_slices(([[t] for t in texts], y)).batch(8)
    _, history = trains(build, data, batch_size=None, epochs=5, steps=5 * 4)
    assert history["loss"][-1] < history["loss"][0]


class Cleaned(layers.Layer):
    def call(self, texts):
        return tf.strings.regex_replace(tf.strings.strip(texts), "[.!]", "")

    def compute_output_spec(self, texts):
        return keras.KerasTensor(texts.shape, "string")


@pytest.mark.feature("`tf.strings` in the model, and `predict` of texts")
def test_texts(strategy, trains):
    words = ["good", "bad", "", "na\u00efve"]
    texts = [[f" {word}! "] for word in words] * 8

    def build():
        inputs = keras.Input((1,), dtype="string")
        known = layers.StringLookup(vocabulary=words, output_mode="one_hot")
        model = keras.Model(inputs, Dense(1)(known(Cleaned()(inputs))))
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        return model

    data = tf.data.Dataset.from_tensor_slices((texts, np.ones((32, 1), "float32")))
    data = data.batch(7)
    model, _ = trains(build, data, batch_size=None, steps=5)
    with strategy.scope():
        cleaned = keras.Model(model.inputs, Cleaned()(model.inputs[0]))
    predicted = cleaned.predict(data.map(lambda text, _: text), verbose=0)
    assert predicted.tolist() == [[word.encode()] for word in words] * 8


@pytest.mark.feature("`TextVectorization` in `dataset.map`")
def test_text_vectorization_of_a_dataset(trains):
    texts = ["good good film", "bad film", "a good one", "a bad one"] * 8
    y = np.float32([[1], [0], [1], [0]] * 8)
    vectorize = layers.TextVectorization(output_mode="count", max_tokens=10)
    vectorize.adapt(texts)
    width = vectorize.vocabulary_size()
    data = tf.data.Dataset.from_tensor_slices((texts, y)).batch(8)
    data = data.map(lambda text, y: (vectorize(text), y))

    def build():
        model = keras.Sequential([keras.Input((width,)), Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    _, history = trains(build, data, batch_size=None, epochs=5, steps=5 * 4)
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.feature("`Normalization`, adapted in the scope")
def test_normalization(regression, trains):
    x, y = 100.0 * regression[0] + 7.0, regression[1]

    def build():
        normalization = layers.Normalization()
        normalization.adapt(x)
        return compiled(normalization, Dense(1))

    _, history = trains(build, x, y, epochs=4, steps=4 * STEPS)
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.feature("`enable_lora`")
def test_lora(regression, trains):
    kernels = []

    def build():
        model = mlp()
        model.layers[0].enable_lora(2)
        model.compile(keras.optimizers.SGD(0.05), "mse")
        kernels.append(model.layers[0]._kernel.numpy())
        return model

    model, history = trains(build, *regression, epochs=3, steps=3 * STEPS)
    assert history["loss"][-1] < history["loss"][0]
    np.testing.assert_array_equal(model.layers[0]._kernel.numpy(), kernels[0])


class DrawingInTraining(layers.Layer):
    """Draws without a seed, and not where a model is built."""

    def call(self, x, training=None):
        if not training:
            return x
        return x + 0.01 * keras.random.normal(keras.ops.shape(x))


class DrawingInPredictions(layers.Layer):
    def call(self, x, training=None):
        if training is not False:
            return x
        return x + keras.random.normal(keras.ops.shape(x))


@pytest.mark.feature(
    "`keras.random` without a seed in a layer",
    "approximate",
    "two workers may draw the same numbers, for different batches",
    synchronous="yes",
)
@pytest.mark.parametrize("generator", ["new", "from before"])
@pytest.mark.sets_own_value("^seed_generator_state", "numbers are drawn twice at worst")
def test_random_numbers_without_a_seed_in_a_layer(regression, fits, generator):
    keras.utils.clear_session()
    if generator == "from before":
        keras.random.normal((2,))

    def build():
        return compiled(DrawingInTraining(), Dense(1))

    fits(build, *regression, exact=False)


@pytest.mark.sets_own_value("^seed_generator_state", "numbers are drawn twice at worst")
def test_random_numbers_without_a_seed_in_predictions(strategy, regression):
    keras.utils.clear_session()
    with strategy.scope():
        model = compiled(DrawingInPredictions(), Dense(1))
    first, second = (model.predict(regression[0], verbose=0) for _ in range(2))
    assert np.std(first - second) > 0


@pytest.mark.in_gate
@pytest.mark.feature("A recurrent layer between `Dense` layers, of batches of any size")
def test_sequences_of_unknown_batches(strategy):
    """On ps, shapes and what an update waits for travel in one message."""
    rows = tf.data.Dataset.from_tensor_slices(np.ones([24, 5, 4], "float32"))
    data = tf.data.Dataset.zip(rows, rows.map(lambda row: row[:, :3])).batch(8)
    with strategy.scope():
        recurrent = layers.LSTM(4, return_sequences=True)
        ends = Dense(6), Dense(3)
        model = keras.Sequential([keras.Input((5, 4)), ends[0], recurrent, ends[1]])
        model.compile("adam", "mse")
    history = model.fit(data, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
