"""An endless dataset that the workers read: each takes its share of the batches."""

import threading

import pytest
import tensorflow as tf
from tensorflow.data.experimental import service
from tensorflow.python.distribute.ps_values import DistributedTable

from tfdist import _tf
from tfdist.keras.distributed_data import InputPipelines
from tfdist.parameter_server.feed.worker_input import WorkerInput


def shares(dataset, monkeypatch, batches):
    """The first batches of each of two workers."""
    worker_input = WorkerInput.of(dataset, coordinator=None, num_workers=2)
    found = []
    for worker in range(2):
        monkeypatch.setattr(
            tf.distribute.coordinator,
            "experimental_get_current_worker_index",
            lambda index=worker: tf.constant(index, tf.int64),
        )
        found.append(iter(worker_input._make()))
    return [[int(next(each)) for each in found] for _ in range(batches)]


def test_workers_take_turns(monkeypatch):
    numbers = tf.data.Dataset.range(4).repeat()
    assert shares(numbers, monkeypatch, 3) == [[0, 1], [2, 3], [0, 1]]


def pipelines(*sizes):
    """Datasets of different numbers, one of each size; None is without an end."""
    return InputPipelines(
        [
            tf.data.Dataset.range(
                100 * i, 100 * i + (3 if size is None else size)
            ).repeat(None if size is None else 1)
            for i, size in enumerate(sizes)
        ]
    )


def test_a_worker_reads_the_pipeline_that_a_function_made_for_it(monkeypatch):
    assert shares(pipelines(None, None), monkeypatch, 4) == [
        [0, 100],
        [1, 101],
        [2, 102],
        [0, 100],
    ]


def test_the_devices_of_a_worker_share_its_pipeline(monkeypatch):
    assert shares(pipelines(None), monkeypatch, 3) == [[0, 1], [2, 0], [1, 2]]


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [((3, 1), [0, 100, 1, 2]), ((1, 0, 3), [0, 200, 201, 202]), ((2,), [0, 1])],
)
def test_pipelines_take_turns_until_they_end(sizes, batches):
    data = pipelines(*sizes).map(lambda number: number).prefetch(2)
    assert [int(each) for each in data] == batches
    assert data.cardinality() == len(batches)
    assert WorkerInput.of(data, coordinator=None, num_workers=2) is None


@pytest.fixture(scope="module")
def dispatcher():
    dispatcher = service.DispatchServer()
    address = dispatcher.target.removeprefix("grpc://")
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    yield dispatcher.target
    del worker


@pytest.mark.parametrize(("job_name", "divided"), [("shared", False), (None, True)])
def test_what_tf_data_service_has_divided_is_not_divided_again(
    dispatcher, job_name, divided, monkeypatch
):
    numbers = tf.data.Dataset.range(1 << 40).apply(
        service.distribute("distributed_epoch", dispatcher, job_name=job_name)
    )
    endless = numbers.apply(
        tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    )
    # The iterators of one process share no job: each gets all that the job has.
    expected = [[2 * i, 2 * i + 1] if divided else [i, i] for i in range(20)]
    assert shares(endless, monkeypatch, 20) == expected


@pytest.mark.parametrize(
    "where", ["cond", "nested", "while", "switch", "function", "called"]
)
def test_a_branch_looks_up_in_the_table_of_its_task(where):
    # As in the scope of parameter servers, but of this process alone.
    words = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2]))
    table = object.__new__(DistributedTable)
    vars(table).update(
        _coordinator_instance=tf.lookup.StaticHashTable(words, -1),
        _distributed_table=object(),
        _distributed_table_creation_lock=threading.Lock(),
    )

    def cond(s):
        return tf.cond(s == "a", lambda: table.lookup(s), lambda: table.lookup(s) + 0)

    def loop(s):
        def is_open(i, _):
            return i < table.lookup(tf.constant("b"))

        return tf.while_loop(is_open, lambda i, _: (i + 1, table.lookup(s)), (0, 0))[1]

    look_up = {
        "cond": cond,
        "nested": lambda s: tf.cond(s != "b", lambda: cond(s), lambda: 2),
        "while": loop,
        "switch": lambda s: tf.switch_case(tf.strings.length(s) - 1, [lambda: cond(s)]),
        "function": tf.function(cond),
        "called": lambda s: tf.cond(s != "b", lambda: tf.function(loop)(s), lambda: 2),
    }[where]
    _tf.look_up_within_branches()
    data = tf.data.Dataset.from_tensor_slices(["a", "b", "c"]).map(look_up)
    assert [int(each) for each in data] == [1, 2, -1]
