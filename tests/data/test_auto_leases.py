"""Ordinary pipelines of TFRecord files, and the same with leases, in one process."""

import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tfdist.data import LeasedDataset, SourceError, chief_only_reasons
from tfdist.data.auto_leases import auto_leased
from tfdist.graph.functions import digest
from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.feed.feed import Feed
from tfdist.parameter_server.feed.sources import ChiefBatches

from ..support.raising import raises

AUTOTUNE = tf.data.AUTOTUNE


def write(path, numbers):
    """Writes a record for each number: of a length of its own, with the number in it."""
    with tf.io.TFRecordWriter(str(path)) as file:
        for number in numbers:
            file.write(b"%d:" % number + b"x" * (number % 5))
    return str(path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Four files of 23 records; one has none."""
    folder = tmp_path_factory.mktemp("records")
    parts = [*np.array_split(range(23), 3), []]
    return [write(folder / f"{i}.rec", part) for i, part in enumerate(parts)]


def parse(record):
    number = tf.strings.to_number(tf.strings.split(record, ":")[0], tf.int32)
    return {"number": number, "length": tf.strings.length(record)}


def later(element):
    return tf.nest.map_structure(lambda each: each * 2, element), element["number"]


SOURCES = {
    "list": tf.data.TFRecordDataset,
    "reads": lambda paths: tf.data.TFRecordDataset(paths, num_parallel_reads=3),
    "tuned": lambda paths: tf.data.TFRecordDataset(paths, num_parallel_reads=AUTOTUNE),
    "listed": lambda paths: tf.data.Dataset.list_files(paths, seed=5).flat_map(
        tf.data.TFRecordDataset
    ),
    "interleave": lambda paths: tf.data.Dataset.from_tensor_slices(paths).interleave(
        tf.data.TFRecordDataset, cycle_length=2, block_length=3
    ),
    "parallel": lambda paths: tf.data.Dataset.list_files(
        paths, shuffle=False
    ).interleave(
        lambda path: tf.data.TFRecordDataset(path).skip(1).take(6),
        cycle_length=3,
        num_parallel_calls=2,
    ),
}
numbers = st.integers(1, 9)
ORDERS = st.one_of(
    st.tuples(st.just("shuffle"), numbers, numbers),
    st.tuples(st.just("take"), st.integers(-1, 30)),
    st.tuples(st.just("skip"), st.integers(0, 9)),
    st.tuples(st.just("shard"), st.just(2), st.integers(0, 1)),
    st.tuples(st.just("repeat"), st.integers(1, 3)),
    st.tuples(st.just("prefetch"), st.sampled_from([1, AUTOTUNE])),
    st.tuples(st.just("map"), st.sampled_from([None, 2, AUTOTUNE])),
)
BATCHES = st.one_of(
    st.just(()),
    st.tuples(st.just("batch"), numbers, st.booleans(), st.sampled_from([None, 2])),
    st.tuples(st.just("padded_batch"), numbers, st.booleans()),
)


def chain(source, paths, before, batch, after):
    """The dataset of a drawn chain, and whether its examples were parsed."""
    data = SOURCES[source](paths)
    maps = iter((parse, later))
    for name, *arguments in [*before, *([batch] if batch else []), *after]:
        if name == "map":
            # Behind the batch, strings are a vector.
            is_record = isinstance(data.element_spec, tf.TensorSpec)
            function = next(maps, None)
            if function is None or is_record and data.element_spec.shape.rank:
                continue
            data = data.map(function, *arguments)
        elif name == "shuffle":
            data = data.shuffle(arguments[0], seed=arguments[1])
        elif name == "batch":
            data = data.batch(*arguments)
        elif name == "padded_batch":
            data = data.padded_batch(arguments[0], drop_remainder=arguments[1])
        else:
            data = getattr(data, name)(*arguments)
    return data


def leased_of(dataset):
    return auto_leased(dataset).leased


def leased_or_why_not(dataset):
    try:
        return leased_of(dataset)
    except chief_only_reasons.OnlyTheChiefReads as reason:
        return reason.why


def elements(dataset):
    return [
        [np.asarray(each).tolist() for each in tf.nest.flatten(element)]
        for element in dataset.as_numpy_iterator()
    ]


@pytest.mark.not_in_gate
@given(
    source=st.sampled_from(sorted(SOURCES)),
    before=st.lists(ORDERS, max_size=3),
    batch=BATCHES,
    after=st.lists(ORDERS, max_size=3),
)
@settings(max_examples=15)
def test_it_has_the_elements_of_the_ordinary_one_in_their_order(
    paths, source, before, batch, after
):
    arguments = source, paths, before, batch, after
    leased = leased_or_why_not(chain(*arguments))
    assume(leased != chief_only_reasons.repeated_after_map().why)
    ordinary = chain(*arguments)
    assert isinstance(leased, LeasedDataset)
    assert leased.element_spec == ordinary.element_spec
    # A shuffle has another order in each iteration. Where `take` ends one, it depends on
    # how far a thread has read ahead.
    takes = any(name == "take" for name, *_ in [*before, *after])
    for _ in range(1 if takes else 2):
        assert elements(leased) == elements(ordinary)


def test_a_lease_has_no_example(paths):
    data = tf.data.TFRecordDataset(paths).map(parse).batch(4)
    (first,) = next(leased_of(data).leases.as_numpy_iterator())
    assert first.tolist() == [
        b"%020d" % at + paths[0].encode() for at in (0, 18, 37, 57)
    ]


def test_it_goes_on_where_the_ordinary_one_has_been_iterated(paths):
    def made():
        return tf.data.TFRecordDataset(paths).shuffle(23, seed=1).map(parse).batch(4)

    one, other = made(), made()
    for _ in range(2):
        assert elements(one) == elements(other)
    leased = leased_of(one)
    assert elements(leased) == elements(other)
    assert elements(one) == elements(leased_of(other))


def test_a_file_that_changes_between_epochs_is_read_as_it_is(tmp_path):
    path = write(tmp_path / "a", range(7))
    data = tf.data.TFRecordDataset([path]).map(parse).batch(3)
    leased = leased_of(data)
    for count in (7, 3, 11):
        write(path, range(count))
        assert elements(leased) == elements(data)


def test_many_records_are_found_in_parts(tmp_path):
    paths = [write(tmp_path / "a", range(2500)), write(tmp_path / "b", range(9))]
    data = tf.data.TFRecordDataset(paths).batch(100)
    assert elements(leased_of(data)) == elements(data)


def test_a_file_that_is_missing_truncated_or_a_pipe_is_named(tmp_path, capfd):
    os.mkfifo(tmp_path / "pipe")
    os.truncate(write(tmp_path / "cut", range(9)), 20)
    for name, words in {
        "none": "none cannot be opened",
        "pipe": "must be regular files; received .*/pipe",
        "cut": "cut is truncated",
    }.items():
        data = tf.data.TFRecordDataset([str(tmp_path / name)]).batch(2)
        leases = leased_of(data).leases
        feed = Feed(leases, ChiefBatches(BatchStructure(leases.element_spec)))
        with pytest.raises(SourceError, match=f"{words}.*AutoShardPolicy.OFF") as e:
            feed.take(9)
        assert "\n" not in str(e.value)
    assert "Traceback" not in capfd.readouterr().err  # Which TensorFlow would log.


def test_what_a_function_of_the_program_raises_is_shown_with_its_lines(paths):
    def fail(record):
        raise ValueError("no number")

    data = tf.data.TFRecordDataset(paths).map(
        lambda record: tf.py_function(fail, [record], tf.string)
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as e:
        Feed(data, ChiefBatches(BatchStructure(data.element_spec))).take(1)
    first, *calls, last = str(e.value.message).splitlines()
    assert first == last == "ValueError: no number"
    assert [line for line in calls if line.startswith("  File ")] == [
        f'  File "{__file__}", line {fail.__code__.co_firstlineno + 1}, in fail'
    ]


def test_random_numbers_without_a_seed(paths):
    tf.random.set_seed(None)
    data = tf.data.TFRecordDataset(paths).map(lambda _: tf.random.uniform([]))
    drawn = elements(leased_of(data))
    assert len({each for (each,) in drawn}) == 23


def with_numbers(numbers):
    return lambda record: (record, numbers)


ELEMENTS = {
    "ragged": lambda data: data.map(
        lambda r: tf.io.decode_raw(r, "uint8")
    ).ragged_batch(4),
    "sparse": lambda data: data.map(
        lambda r: tf.sparse.from_dense(
            tf.strings.to_number([tf.strings.substr(r, 0, 1), "0"])
        )
    ).batch(5),
    "deterministic": lambda data: data.map(parse, 3, deterministic=True).batch(4),
    "options": lambda data: data.map(parse, AUTOTUNE).with_options(options_of()),
    "not reshuffled": lambda data: data.shuffle(
        9, seed=2, reshuffle_each_iteration=False
    ).batch(4),
    "repeated shuffle": lambda data: data.shuffle(9, seed=2).repeat(2).batch(4),
    "shuffled batches": lambda data: data.batch(4, drop_remainder=True).shuffle(
        3, seed=2
    ),
    "asserted": lambda data: data.apply(tf.data.experimental.assert_cardinality(23)),
    "stateless": lambda data: data.map(
        lambda r: tf.random.stateless_uniform([], [tf.strings.length(r), 1])
    ),
    "branches": lambda data: data.map(
        lambda r: tf.cond(tf.strings.length(r) > 4, lambda: 1, lambda: 2)
    ),
    "captured": lambda data: data.map(with_numbers(tf.constant([3, 4]))),
}


def options_of():
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 2
    return options


@pytest.mark.parametrize("name", ELEMENTS)
def test_it_has_the_same_elements(paths, name):
    tf.random.set_seed(None)
    leased, ordinary = (
        ELEMENTS[name](tf.data.TFRecordDataset(paths).shuffle(7, seed=1))
        for _ in range(2)
    )
    leased = leased_of(leased)
    assert leased.element_spec == ordinary.element_spec
    for _ in range(2):
        assert flat(leased) == flat(ordinary)


def flat(dataset):
    found = []
    for element in dataset:
        parts = tf.nest.flatten(element, expand_composites=True)
        found.append([np.asarray(part).tolist() for part in parts])
    return found


@pytest.mark.parametrize("reshuffle", [True, False])
def test_a_shuffle_without_a_seed_goes_on_in_its_order(paths, reshuffle):
    data = tf.data.TFRecordDataset(paths).shuffle(
        23, seed=None, reshuffle_each_iteration=reshuffle
    )
    leased = leased_of(data)
    orders = [elements(leased), elements(data), elements(leased)]
    assert (orders[0] == orders[1]) == (not reshuffle)
    assert (orders[0] == orders[2]) == (not reshuffle)


def test_what_comes_before_a_truncated_record_is_read(tmp_path):
    path = write(tmp_path / "a", range(9))
    os.truncate(path, os.path.getsize(path) - 3)
    data = tf.data.TFRecordDataset([path]).batch(2)
    for each in (data, leased_of(data)):
        assert len(elements(each.take(4))) == 4
        with raises(tf.errors.OpError, "truncated"):
            elements(each)


def test_a_file_that_changes_within_an_epoch_ends_it(tmp_path):
    path = write(tmp_path / "a", range(1500))
    leases = iter(leased_of(tf.data.TFRecordDataset([path])).leases)
    next(leases)
    write(path, range(1500, 3000))
    with pytest.raises(tf.errors.OpError, match="was written to|bytes, and had"):
        list(leases)


def test_pipelines_that_do_the_same_have_one_digest(paths):
    def graph(**options):
        records = tf.data.TFRecordDataset(paths)
        data = leased_of(records.map(parse).batch(4, **options))
        read = tf.function(data.read).get_concrete_function(*data.leases.element_spec)
        return digest(read.graph.as_graph_def())

    assert graph() == graph() != graph(drop_remainder=True)
