"""Lookup tables, adapted layers and `tf.summary` writers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled

import tfdist

from ..support.raising import raises

layers = keras.layers

TEXTS = ["good good film", "bad film", "a good one", "a bad one"] * 8
WORDS = np.array([text.split()[-1] for text in TEXTS])
NUMBERS = np.array([7, 5, 7, 3] * 8)
LABELS = np.float32([[1], [0], [1], [0]] * 8)


def adapted(layer, data):
    layer.adapt(data)
    return layer


def vectorization(**options):
    return adapted(layers.TextVectorization(**options), TEXTS)


class Preprocessing(layers.Layer):
    """Holds its layers in a dict, one nested in another."""

    def __init__(self):
        super().__init__()
        self.steps = {"encode": keras.Sequential([vectorization(output_mode="count")])}

    def call(self, x):
        return self.steps["encode"](x)


LAYERS = {
    "TextVectorization": (lambda: vectorization(output_mode="count"), TEXTS),
    "TextVectorization(output_mode='tf_idf')": (
        lambda: vectorization(output_mode="tf_idf", max_tokens=20),
        TEXTS,
    ),
    "tf_idf, padded": (
        lambda: vectorization(
            output_mode="tf_idf", max_tokens=20, pad_to_max_tokens=True
        ),
        TEXTS,
    ),
    "StringLookup": (
        lambda: adapted(layers.StringLookup(output_mode="one_hot"), WORDS),
        WORDS,
    ),
    "StringLookup(vocabulary=...)": (
        lambda: layers.StringLookup(
            vocabulary=["film", "one"], output_mode="multi_hot", num_oov_indices=2
        ),
        WORDS,
    ),
    "IntegerLookup": (
        lambda: adapted(
            layers.IntegerLookup(output_mode="one_hot", mask_token=3), NUMBERS
        ),
        NUMBERS,
    ),
    "nested": (Preprocessing, TEXTS),
}


@pytest.mark.feature("A lookup layer adapted outside the scope")
@pytest.mark.parametrize("name", LAYERS)
def test_adapted_outside(strategy, runs_on_workers, name):
    make, values = LAYERS[name]
    layer, x = make(), tf.constant(values)[:, None]
    encoded = layer(x).numpy()
    data = tf.data.Dataset.from_tensor_slices((x, LABELS)).batch(8)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,), dtype=x.dtype), layer, layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    before = model.evaluate(data, verbose=0)[0]
    with runs_on_workers(4 * 4):
        model.fit(data, epochs=4, verbose=0)
    assert model.evaluate(data, verbose=0)[0] < before
    kernel, bias = model.get_weights()
    expected = encoded @ kernel + bias
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5)
    np.testing.assert_allclose(model(x), expected, rtol=1e-5)


@pytest.mark.in_gate("predict")
@pytest.mark.parametrize("call", ["evaluate", "predict", "train_on_batch"])
def test_adapted_outside_in_the_first_call(strategy, call):
    vectorize = vectorization(output_mode="count")
    with strategy.scope():
        model = keras.Sequential([vectorize, layers.Dense(1)])
        model.compile("sgd", "mse")
    data = (tf.constant(TEXTS)[:, None], LABELS)
    getattr(model, call)(*data[: 1 if call == "predict" else 2])


def test_saved_with_its_vocabulary(strategy, tmp_path, wait_for_chief):
    x = tf.constant(TEXTS)[:, None]
    vectorize = vectorization(output_mode="tf_idf")
    vocabulary = vectorize.get_vocabulary()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,), dtype="string"), vectorize, layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    model.fit(x, LABELS, batch_size=8, verbose=0)
    assert vectorize.get_vocabulary() == vocabulary
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "exported", verbose=False)
    wait_for_chief()
    expected = model.predict(x, verbose=0)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, rtol=1e-5)
    served = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(served.serve(x), expected, rtol=1e-5)


def static_table(keys=("a", "b")):
    values = tf.range(len(keys), dtype=tf.int64)
    content = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), values)
    return tf.lookup.StaticHashTable(content, -1)


class Lookup(layers.Layer):
    """Owns a lookup table."""

    def __init__(self, make_table, **kwargs):
        super().__init__(**kwargs)
        self.table = make_table()

    def call(self, x):
        found = tf.ensure_shape(self.table.lookup(x), x.shape)
        return tf.cast(found, tf.float32)


def words_model(layer):
    model = keras.Sequential(
        [keras.Input((1,), dtype="string"), layer, layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model


def letters(batch_size=2):
    letters, targets = np.array([["a"], ["b"], ["c"]]), [0.0, 1.0, 2.0]
    return tf.data.Dataset.from_tensor_slices((letters, targets)).batch(batch_size)


@pytest.mark.in_gate
@pytest.mark.feature("A layer's `tf.lookup.StaticHashTable` created outside the scope")
def test_own_table(strategy, runs_on_workers):
    layer = Lookup(static_table)
    with strategy.scope():
        model = words_model(layer)
    with runs_on_workers(2):
        model.fit(letters(), verbose=0)
    kernel, bias = model.get_weights()
    prediction = model.predict(tf.constant([["a"], ["b"], ["c"]]), verbose=0)
    expected = np.float32([[0], [1], [-1]]) @ kernel + bias
    np.testing.assert_allclose(prediction, expected, rtol=1e-5)


def vocabulary_table():
    content = tf.lookup.KeyValueTensorInitializer(
        tf.constant(["a", "b"]), tf.range(2, dtype=tf.int64)
    )
    return tf.lookup.StaticVocabularyTable(content, 3)


def mutable_table():
    return tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)


@pytest.mark.parameter_server
@pytest.mark.feature(
    "Another table created outside the scope",
    "no",
    "the error names the layer and attribute",
)
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (vocabulary_table, "StaticVocabularyTable"),
        (mutable_table, "MutableHashTable"),
    ],
)
def test_other_table_outside(strategy, runs_on_workers, make, kind):
    layer = Lookup(make, name="mine")
    with strategy.scope():
        model = words_model(layer)
    refusal = (
        rf"created outside of .* scope: \S*mine\.table \({kind}\)\. .*a "
        r"tf\.lookup\.StaticHashTable if it is created inside `with strategy.scope"
    )
    with runs_on_workers(0), pytest.raises(ValueError, match=refusal):
        model.fit(letters(), verbose=0)


@pytest.mark.parameter_server
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_table_that_no_layer_has(strategy, runs_on_workers, steps_per_execution):
    table = static_table()

    class Looking(keras.Sequential):
        def train_step(self, data):
            x, y = data
            return super().train_step((table.lookup(x), y))

    with strategy.scope():
        model = Looking([keras.Input((1,), dtype="int64"), layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    line = Looking.train_step.__code__.co_firstlineno + 2
    refusal = f"that LookupTableFindV2 uses, made in {__file__}, line {line}"
    with runs_on_workers(0), pytest.raises(ValueError, match=refusal):
        model.fit(letters(1), verbose=0)


@pytest.mark.parameter_server
def test_layer_without_a_vocabulary(strategy):
    layer = layers.StringLookup(name="empty")
    with strategy.scope():
        model = words_model(layer)
    with raises(ValueError, "empty.lookup_table", "StaticHashTable"):
        model.fit(letters(), verbose=0)


@pytest.mark.parameter_server
@pytest.mark.feature(
    "A `tf.random.Generator` created outside the scope", "no", "like a metric"
)
def test_generator_outside(strategy):
    class Noise(layers.Layer):
        def __init__(self):
            super().__init__(name="noise")
            self.generator = tf.random.Generator.from_seed(1)

        def call(self, x):
            return x + self.generator.normal(tf.shape(x))

    layer = Noise()
    with strategy.scope():
        model = compiled(layer, layers.Dense(1))
    with raises(ValueError, "noise.generator", "Generator"):
        model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)


@pytest.mark.in_gate("int-True")
@pytest.mark.parameter_server
@pytest.mark.feature("A lookup layer in a dataset that the workers read", rounds="-")
@pytest.mark.parametrize("is_in_scope", [False, True])
@pytest.mark.parametrize("output_mode", ["int", "tf_idf"])
def test_lookup_in_an_endless_dataset(
    strategy, runs_on_workers, sent, is_in_scope, output_mode
):
    """The words of each row reach the model as the chief encodes them."""
    if is_in_scope:
        with strategy.scope():
            lookup = adapted(layers.StringLookup(output_mode=output_mode), WORDS)
    else:
        lookup = adapted(layers.StringLookup(output_mode=output_mode), WORDS)
    x = tf.constant(WORDS)[:, None]
    encoded = lookup(x).numpy().astype("float32")
    weights = np.arange(1.0, encoded.shape[1] + 1, dtype="float32")[:, None]
    targets = encoded @ weights
    data = tf.data.Dataset.from_tensor_slices((x, targets)).repeat().batch(8)
    data = data.map(lambda x, y: (tf.cast(lookup(x), tf.float32), y))
    with strategy.scope():
        dense = layers.Dense(1, use_bias=False)
        model = keras.Sequential([keras.Input((encoded.shape[1],)), dense])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.set_weights([weights])
    with runs_on_workers(8):
        loss = model.fit(data, steps_per_epoch=8, verbose=0).history["loss"]
    assert loss == [pytest.approx(0.0, abs=1e-9)]
    assert targets.std() > 0
    (function,) = sent.functions
    assert "IteratorGetNext" in {op.type for op in function.graph.get_operations()}


class Summaries(layers.Layer):
    """Writes a summary in each step, as layers of Keras 2 did."""

    def call(self, x):
        tf.summary.scalar("mean", tf.reduce_mean(x))
        return x


@pytest.mark.feature("`tf.summary` in a layer, under `TensorBoard(update_freq=1)`")
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_summaries(
    strategy, regression, runs_on_workers, tmp_path, wait_for_chief, steps_per_execution
):
    with strategy.scope():
        model = compiled(
            Summaries(), layers.Dense(1), steps_per_execution=steps_per_execution
        )
    board = keras.callbacks.TensorBoard(tmp_path, update_freq=1)
    with runs_on_workers(8):
        model.fit(
            *regression,
            batch_size=8,
            validation_data=regression,
            callbacks=[board],
            verbose=0,
        )
    wait_for_chief()
    expected = {regression[0][i : i + 8].mean() for i in range(0, 64, 8)}
    for part in ("train", "validation"):
        values = {
            float(tf.make_ndarray(value.tensor))
            for path in (tmp_path / part).glob("events.out*")
            for event in tf.compat.v1.train.summary_iterator(str(path))
            for value in event.summary.value
            if value.tag.endswith("/mean")
        }
        assert len(values) == 8
        if part == "validation" and isinstance(
            strategy, tfdist.ParameterServerStrategy
        ):
            np.testing.assert_allclose(sorted(values), sorted(expected), rtol=1e-4)
