"""Ordinary pipelines that are not followed, and why."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data import from_source
from tfdist.data.auto_leases import auto_leased
from tfdist.data.chief_only_reasons import OnlyTheChiefReads
from tfdist.parameter_server.feed.leased_batches import LeaseReaders


def seeded(record):
    return tf.random.uniform([], seed=3), record


def drawn_after_set_seed(record):
    tf.random.set_seed(3)
    return tf.random.uniform([]), record


def counted():
    times = tf.Variable(0)
    return lambda record: (times.assign_add(1), record)


def reading(variable):
    return lambda record: (record, variable + 1)


def looked_up():
    content = tf.lookup.KeyValueTensorInitializer(["a"], [1])
    table = tf.lookup.StaticHashTable(content, 0)
    return lambda record: table[record]


def shown(record):
    tf.print(record)
    return record


def in_python(record):
    return tf.py_function(lambda each: each, [record], tf.string)


def of_a_file(record):
    return tf.io.read_file(tf.strings.join([__file__, tf.strings.substr(record, 0, 0)]))


def on_a_gpu(record):
    with tf.device("/GPU:0"):
        return record, tf.strings.length(record) + 1


def pooled(record):
    images = tf.zeros([1, 4, 4, 1]) + tf.cast(tf.strings.length(record), tf.float32)
    return tf.nn.fractional_max_pool(images, [1, 1.5, 1.5, 1], True, seed=7).output


def within(record):
    return tf.data.Dataset.from_tensors(record).get_single_element()


def with_generator():
    generator = tf.random.Generator.from_seed(1)
    return lambda record: (record, generator.uniform([]))


def with_captured_dataset():
    lines = tf.data.TextLineDataset(__file__)
    return lambda record: (record, lines.take(1).get_single_element())


def of_numpy(record):
    return tf.ensure_shape(tf.numpy_function(lambda r: r, [record], tf.string), [])


def large():
    zeros = tf.zeros([2**20])
    return lambda record: zeros[0]


def in_interleave(function, paths=(__file__,)):
    return lambda _: tf.data.Dataset.from_tensor_slices(list(paths)).interleave(
        function
    )


def interleaved_with(_):
    limit = tf.Variable(1, dtype=tf.int64)
    function = lambda path: tf.data.TFRecordDataset(path).take(limit)  # noqa: E731
    return in_interleave(function)(_)


def grouped(data):
    return data.group_by_window(
        lambda _: tf.constant(1, tf.int64), lambda _, each: each, 2
    )


def resampled(data):
    numbers = data.map(lambda record: tf.cast(tf.strings.length(record), tf.int32))
    return numbers.rejection_resample(lambda number: number % 2, [0.5, 0.5])


def sampled(data):
    return tf.data.Dataset.sample_from_datasets([data, data], seed=1)


REFUSED = {
    "filter": (lambda data: data.filter(lambda _: True), "^filter comes after"),
    "cache": (lambda data: data.cache(), "^cache comes after"),
    "two": (lambda data: data.batch(2).batch(2), "a second batch"),
    "repeat": (
        lambda data: data.shuffle(5).map(tf.strings.length).take(9).repeat(2),
        "map stands between shuffle and repeat",
    ),
    "unbatch": (lambda data: data.batch(2).unbatch(), "^unbatch comes after"),
    "zip": (lambda data: tf.data.Dataset.zip(data, data), "^zip or enumerate comes"),
    "enumerate": (lambda data: data.enumerate(), "^zip or enumerate comes after"),
    "seeded": (lambda data: data.map(seeded), "RandomUniform.* draws with a seed"),
    "counter": (lambda data: data.map(counted()), "uses a variable, a table"),
    "read variable": (
        lambda data: data.map(reading(tf.Variable(1))),
        "uses a variable, a table",
    ),
    "table": (lambda data: data.map(looked_up()), "uses a variable, a table"),
    "generator of numbers": (
        lambda data: data.map(with_generator()),
        "uses a variable, a table",
    ),
    "captured dataset": (lambda data: data.map(with_captured_dataset()), "uses a"),
    "read_file": (lambda data: data.map(of_a_file), "ReadFile .* another process"),
    "dataset in map": (lambda data: data.map(within), "TensorDataset .* has an effect"),
    "gpu": (lambda data: data.map(on_a_gpu), "on /device:GPU:0 .* another process"),
    "pool": (lambda data: data.map(pooled), "FractionalMaxPool .* draws with a seed"),
    "global seed": (lambda data: data.map(drawn_after_set_seed), "draws with a seed"),
    "print": (lambda data: data.map(shown), "PrintV2 .* has an effect"),
    "python": (lambda data: data.map(in_python), "calls Python functions"),
    "numpy": (lambda data: data.map(of_numpy), "calls Python functions"),
    "concatenate": (lambda data: data.concatenate(data), "^concatenate comes after"),
    "interleaved": (
        sampled,
        "^sample_from_datasets, choose_from_datasets or rejection_resample comes",
    ),
    "window": (lambda data: data.window(2), "^window comes after its source"),
    "joined windows": (
        lambda data: data.window(2).flat_map(lambda window: window.batch(2)),
        "^flat_map comes after its source",
    ),
    "grouped": (
        grouped,
        "^group_by_window or bucket_by_sequence_length comes after its source",
    ),
    "snapshot": (lambda data: data.snapshot("/nowhere"), "^snapshot comes after its"),
    "ignore_errors": (lambda data: data.ignore_errors(), "^ignore_errors comes after"),
    "take_while": (lambda data: data.take_while(lambda _: True), "^take_while comes"),
    "sparse_batch": (
        lambda data: data.map(tf.strings.length).sparse_batch(2, []),
        "^sparse_batch comes after its source",
    ),
    "unique": (lambda data: data.unique(), "^unique comes after"),
    "a pair with nothing": (
        lambda data: data.map(lambda record: (record, None)),
        "elements that are no tensors",
    ),
    "large": (lambda data: data.map(large()), "4,194,.* bytes of arrays"),
    "generator": (
        lambda _: tf.data.Dataset.from_generator(lambda: iter([1]), tf.int32),
        "a Python function makes its examples",
    ),
    "text": (
        lambda _: tf.data.TextLineDataset(__file__),
        "^TextLineDataset reads its files from their beginning",
    ),
    "comma-separated": (
        lambda _: tf.data.experimental.CsvDataset(__file__, [0.0]),
        "^CsvDataset reads its files from their beginning",
    ),
    "comma-separated, by name": (
        lambda _: tf.data.experimental.make_csv_dataset(__file__, 1, ["a"], ["a"]),
        "^CSVDataset reads its files from their beginning",
    ),
    "compressed": (
        lambda _: tf.data.TFRecordDataset([__file__], compression_type="GZIP"),
        "records are compressed",
    ),
    "within": (
        in_interleave(lambda path: tf.data.TFRecordDataset(path).map(seeded)),
        "map is within interleave or flat_map",
    ),
    "shuffle within": (
        in_interleave(lambda path: tf.data.TFRecordDataset(path).shuffle(9)),
        "is within interleave or flat_map",
    ),
    "other name": (
        in_interleave(lambda path: tf.data.TFRecordDataset([__file__])),
        "names of its files come from a name of a file",
    ),
    "names in records": (
        in_interleave(
            lambda path: tf.data.TFRecordDataset(path).flat_map(tf.data.TFRecordDataset)
        ),
        "names of its files come from records of other files",
    ),
    "made name": (
        in_interleave(lambda path: tf.data.TFRecordDataset(path + ".rec")),
        "is within interleave or flat_map",
    ),
    "captured": (interleaved_with, "uses a variable, a table"),
    "mapped names": (
        lambda _: (
            tf.data.Dataset.from_tensor_slices(["a"])
            .map(lambda name: name + ".rec")
            .flat_map(tf.data.TFRecordDataset)
        ),
        "names of its files come from map",
    ),
    "named in Python": (
        lambda _: tf.data.Dataset.from_generator(lambda: ["a"], tf.string).flat_map(
            tf.data.TFRecordDataset
        ),
        "names of its files come from flat_map",
    ),
    "remote": (
        lambda _: tf.data.TFRecordDataset(["gs://bucket/a"]),
        "not on a path of the file system",
    ),
    "arrays": (
        lambda _: tf.data.Dataset.from_tensor_slices(np.zeros([70, 2**20], "uint8")),
        "73,400,320 bytes of arrays in the chief's memory",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_the_same_by_leases(name):
    made, why = REFUSED[name]
    with pytest.raises(OnlyTheChiefReads, match=why) as raised:
        auto_leased(made(tf.data.TFRecordDataset([__file__])))
    assert raised.value.what_to_do


AFTER_A_SOURCE = {
    "a second batch": lambda data: data.ragged_batch(2).padded_batch(2),
    "flat_map": lambda data: data.flat_map(tf.data.Dataset.from_tensors),
    "group_by_window or bucket_by_sequence_length": grouped,
    "sample_from_datasets, choose_from_datasets or rejection_resample": resampled,
    "sparse_batch": lambda data: data.map(tf.strings.length).sparse_batch(2, []),
    "take_while": lambda data: data.take_while(lambda _: True).map(tf.strings.length),
    "unbatch": lambda data: data.batch(2).unbatch(),
    "zip or enumerate": lambda data: data.enumerate().batch(2),
}


@pytest.mark.parametrize("name", AFTER_A_SOURCE)
def test_what_follows_a_source_is_told_once(name, caplog):
    readers = LeaseReaders(None)
    for _ in range(2):
        source = from_source(np.array(["a", "bc", "d", "e"]))
        assert readers.of(AFTER_A_SOURCE[name](source)) is None
    (said,) = [each.getMessage() for each in caplog.records if each.name == "tfdist"]
    assert f"the workers: {name} comes after its source" in said


@pytest.mark.parametrize(
    "data",
    [
        lambda: tf.data.Dataset.range(9).map(lambda x: x + 1).batch(2),
        lambda: tf.data.Dataset.from_tensor_slices(np.zeros([64, 4])).batch(8),
    ],
)
def test_nothing_is_said_of_what_is_small(data):
    assert auto_leased(data()) is None
