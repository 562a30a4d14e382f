"""Datasets with leases, in one process."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist import _tf
from tfdist.data import LeasedDataset, SourceError, from_files, from_source
from tfdist.data.sources import shuffled
from tfdist.peers.shares import UnequalDataError, naming_unequal_data, own_batches

from ..support.raising import raises

SAMPLES = 23


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """An array of 23 rows, with the number of the row in each."""
    path = tmp_path_factory.mktemp("arrays") / "x.npy"
    np.save(path, np.repeat(np.arange(SAMPLES)[:, None], 3, axis=1))
    return path


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Three files of records, with the number of the record in each."""
    paths = [tmp_path_factory.mktemp("records") / f"{i}" for i in range(3)]
    for path, numbers in zip(paths, np.array_split(range(SAMPLES), 3), strict=True):
        with tf.io.TFRecordWriter(str(path)) as file:
            for number in numbers:
                file.write(str(number).encode() * 3)
    return paths


def numbers_of(dataset):
    return [int(each) for batch in dataset for each in np.ravel(batch)]


@pytest.mark.parametrize(
    ("examples", "block"), [(1, 1), (1, 5), (1025, 1), (60, 7), (2 * 1024 * 2 + 1, 2)]
)
def test_an_epoch_is_a_permutation_of_blocks(examples, block):
    epochs = shuffled(examples, block, 7), shuffled(examples, block, 7)
    for _ in range(2):
        one, other = (list(epoch.as_numpy_iterator()) for epoch in epochs)
        assert one == other
        assert sorted(one) == list(range(examples))
        begins = [i for i in one if i % block == 0]
        expected = [i for b in begins for i in range(b, min(b + block, examples))]
        assert one == expected


@pytest.mark.parametrize("block", [1, 4])
def test_epochs_and_seeds_have_orders_of_their_own(block):
    one, other = shuffled(1000, block, 1), shuffled(1000, block, 2)
    orders = [tuple(each.as_numpy_iterator()) for each in (one, one, other)]
    assert len(set(orders)) == 3


def test_an_order_goes_on_from_a_checkpoint():
    order = shuffled(3000, 7, 1).batch(10)
    list(order)  # Of the second epoch.
    iterator = iter(order)
    before = [next(iterator) for _ in range(130)]
    state = _tf.iterator_state(iterator)
    rest = numbers_of(iterator)
    again = iter(shuffled(3000, 7, 1).batch(10))
    _tf.restore_iterator(again, state)
    assert numbers_of(again) == rest
    assert sorted([*numbers_of(before), *rest]) == list(range(3000))


@pytest.mark.parametrize(
    "transformed",
    [
        lambda data: data,
        lambda data: data.batch(5),
        lambda data: data.map(lambda x: x).batch(5),
        lambda data: data.batch(5).map(lambda x: x),
        lambda data: data.padded_batch(5),
        lambda data: data.shuffle(9, seed=1).batch(5).prefetch(2),
        lambda data: data.batch(5).shuffle(9).with_options(tf.data.Options()),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_example_once(path, transformed, shuffle):
    data = transformed(from_source(path, shuffle=shuffle, seed=1))
    assert isinstance(data, LeasedDataset)
    seen = numbers_of(data.map(lambda x: x[..., 0]))
    assert sorted(seen) == list(range(SAMPLES))
    assert len(list(data)) == data.cardinality()


def test_it_equals_the_dataset_of_the_arrays(path):
    """With the same transformations; what follows `filter` is a dataset like any other."""
    arrays = np.load(path), np.arange(SAMPLES) * 2

    def transformed(data):
        data = data.shuffle(9, seed=3).skip(2).take(20).shard(2, 1).repeat(2)
        data = data.map(lambda x, y: (x + tf.cast(y, x.dtype), y)).batch(4, True)
        return data.map(lambda x, y: (x * 2, y)).filter(lambda x, y: y[0] > 4).unbatch()

    one = list(transformed(from_source((path, arrays[1]))).as_numpy_iterator())
    other = transformed(tf.data.Dataset.from_tensor_slices(arrays))
    for a, b in zip(one, other.as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1] == b[1]


def test_structures_and_static_shapes(path):
    source = {"x": path, "names": np.array([f"n{i}" for i in range(SAMPLES)])}
    batches = from_source(source).batch(4, drop_remainder=True)
    assert batches.element_spec == {
        "x": tf.TensorSpec([4, 3], tf.int64),
        "names": tf.TensorSpec([4], tf.string),
    }
    first = next(iter(batches))
    np.testing.assert_array_equal(first["x"][:, 0], range(4))
    assert first["names"].numpy().tolist() == [b"n0", b"n1", b"n2", b"n3"]


def test_examples_of_several_lengths_are_padded(path):
    rows = from_source(path).map(lambda x: tf.range(x[0] % 3))
    padded = next(iter(rows.padded_batch(6)))
    np.testing.assert_array_equal(padded, [[0, 0], [0, 0], [0, 1]] * 2)


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_examples_of_several_lengths_are_ragged(path, drop_remainder):
    rows = from_source(path).map(lambda x: tf.range(x[0] % 3))
    ragged = rows.ragged_batch(6, drop_remainder)
    assert isinstance(ragged, LeasedDataset)
    batches = [each.to_list() for each in ragged]
    assert batches[0] == [[], [0], [0, 1]] * 2
    assert sum(map(len, batches)) == (18 if drop_remainder else SAMPLES)


def failing(x):
    raise ValueError("no number")


@pytest.mark.parametrize("batch", [1, 2])
def test_an_error_in_a_map_shows_the_program_alone(path, batch):
    with raises(ValueError, "no number") as raised:
        from_source(path).batch(batch).map(failing)
    assert [each.name for each in raised.traceback[1:]] == ["called"]
    assert str(raised.value).count("  File ") == 1
    assert f'File "{__file__}", line ' in str(raised.value)


def test_a_map_may_branch_on_a_tensor(path):
    def larger(x):
        if x[0] > 20:
            return x[0]
        return tf.constant(0, tf.int64)

    assert sum(numbers_of(from_source(path).map(larger).batch(4))) == 21 + 22


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 2, "block": 3}])
def test_records_of_files(records, options):
    data = from_files(records, **options)
    assert data.cardinality() == SAMPLES
    batches = data.batch(4).as_numpy_iterator()
    found = [record for batch in batches for record in batch]
    assert sorted(found) == sorted(str(i).encode() * 3 for i in range(SAMPLES))
    if not options:
        assert found == [str(i).encode() * 3 for i in range(SAMPLES)]


def test_a_corrupt_record_is_not_read(records, tmp_path):
    path = tmp_path / "corrupt"
    content = bytearray(records[0].read_bytes())
    content[13] ^= 1  # The first byte of the first record.
    path.write_bytes(content)
    with raises(tf.errors.DataLossError, "corrupted"):
        list(from_files([path]).batch(4))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (lambda path: (path, np.zeros(7)), "equally many examples.*23.*7"),
        (lambda path: np.zeros((3, 1000)), "8,000 bytes per example"),
        (lambda path: 3.0, "an example per row"),
        (lambda path: (), "received no array"),
        (lambda path: path.with_name("none.npy"), "none.npy cannot be opened"),
    ],
    ids=["lengths", "large", "scalar", "nothing", "missing"],
)
def test_sources_that_are_none(path, source, why):
    with pytest.raises(SourceError, match=why):
        from_source(source(path))


def test_a_copy_of_a_memory_map_is_an_array_in_memory(tmp_path):
    np.save(tmp_path / "y.npy", np.arange(4))
    copy = np.load(tmp_path / "y.npy", mmap_mode="r").copy()
    assert list(from_source(copy).as_numpy_iterator()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("paths", "why"),
    [("/x.tfr", "must be a list of paths; received '/x.tfr'"), ([], "in 0 files")],
)
def test_files_that_are_none(paths, why):
    with pytest.raises(SourceError, match=why):
        from_files(paths)


@pytest.mark.parametrize("block", [1.5, 0])
def test_a_block_is_a_number_of_examples(path, block):
    words = f"an integer of at least 1 example; received {block}"
    with pytest.raises(ValueError, match=words):
        from_source(path, shuffle=True, block=block)


def with_policy(data, name):
    options = tf.data.Options()
    policy = getattr(tf.data.experimental.AutoShardPolicy, name)
    options.experimental_distribute.auto_shard_policy = policy
    return data.with_options(options)


def test_a_source_of_each_workers_own(path, records):
    """Batches of the cluster, without a static size, are divided among two replicas."""
    for data in (from_source((path, path)), from_files(records)):
        own = with_policy(data.batch(8), "OFF")
        sizes = [
            len(tf.nest.flatten(batch)[0])
            for batch in own_batches(own, 2, 0, replicas=2)
        ]
        assert sizes == [4] * 5 + [3]


@pytest.mark.parametrize("policy", ["FILE", "HINT"])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_a_source_is_not_divided_by_files(path, policy, drop_remainder):
    data = with_policy(from_source(path).batch(8, drop_remainder), policy)
    with pytest.raises(
        UnequalDataError, match=f"AutoShardPolicy.{policy} divides.*OFF"
    ):
        own_batches(data, 2, 0, replicas=2)


def test_fewer_files_than_workers(records):
    """Nobody is advised to train on each example once per worker."""
    data = with_policy(
        tf.data.TFRecordDataset(list(map(str, records))).batch(8), "FILE"
    )
    with naming_unequal_data(3):
        assert sum(map(len, own_batches(data, 3, 0, replicas=3))) == 8
    words = "fewer than the 4 workers. Leave the policy out"
    with pytest.raises(UnequalDataError, match=words), naming_unequal_data(4):
        list(own_batches(data, 4, 0, replicas=4))
