"""Variables and tables made before a strategy connects to a cluster are told as lost."""

USED = """
import tempfile
import keras, tensorflow as tf
from tfdist.cluster.lost_variables import losing_variables
words = tf.data.Dataset.from_tensor_slices(["a", "b"])
mean = keras.metrics.Mean(name="mean")
early = keras.layers.StringLookup(vocabulary=["a", "b"], name="early")
table = early.lookup_table
loose = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
layer = keras.layers.Dense(1, name="dense")
model = keras.Sequential([keras.Input((4,)), layer], name="inner")
outer = keras.Sequential([keras.Input((4,)), model], name="outer")
draws = tf.random.Generator.from_seed(1)
numbers = iter(tf.data.Dataset.range(3))
writer = tf.summary.create_file_writer(tempfile.mkdtemp())
weight = keras.Variable([1.0], name="weight")
optimizer = keras.optimizers.SGD(name="early_sgd")
optimizer.build([weight])
with losing_variables("RingStrategy"):
    pass
for use in (
    lambda: mean.update_state(1.0),
    lambda: words.map(early),
    lambda: words.map(lambda word: loose.lookup(word)),
    lambda: words.map(lambda word: draws.uniform([])),
    lambda: outer(tf.zeros([1, 4])),
    lambda: layer.set_weights(layer.get_weights()),
    table.size,
    lambda: next(numbers),
    writer.set_as_default,
    lambda: optimizer.apply([tf.ones([1])]),
    lambda: optimizer.iterations + 1,
):
    try:
        use()
        print("no error")
    except Exception as error:
        print(type(error).__name__, [l for l in str(error).splitlines() if "made" in l])
mean = keras.metrics.Mean()
mean.update_state(1.0)
assert mean.result() == 1.0
"""
NAMES = (
    "mean/total",
    "early.lookup_table",
    "a MutableHashTable",
    "StateVar",
    "inner/dense/kernel",
    "inner/dense/kernel",
    "early.lookup_table",
    "an iterator of a dataset",
    "a summary writer",
    "early_sgd/learning_rate",
    "early_sgd/iteration",
)


def test_each_use_of_what_was_lost_names_it(run_python):
    result = run_python(USED)
    assert result.returncode == 0, result.stderr
    for line, name in zip(result.stdout.splitlines(), NAMES, strict=True):
        assert line.startswith("LostVariablesError"), line
        assert f"{name} was made before RingStrategy(), and is lost" in line
    assert "made before RingStrategy, such as " in result.stderr
    assert "get_weights()" in result.stderr


DELETED = """
import keras
from tfdist.cluster.lost_variables import losing_variables
keras.utils.set_random_seed(0)
with losing_variables("RingStrategy"):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.get_weights()
del model
with losing_variables("RingStrategy"):
    pass
"""


def test_nothing_is_told_of_what_nobody_has_anymore(run_python):
    result = run_python(DELETED)
    assert result.returncode == 0, result.stderr
    assert "are lost" not in result.stderr
