"""Objects that TensorFlow is slow to delete are deleted in the background."""

import gc
import threading

import pytest
import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.feed.feed import Feed
from tfdist.parameter_server.feed.sources import ChiefBatches
from tfdist.parameter_server.feed.worker_input import WorkerInput
from tfdist.peers.input import ShardedIterator, Totals

from ..support import jobs
from ..support.deadline import DEADLINE


class Slow:
    """An iterator whose deletion ends when it is let go on."""

    def __init__(self):
        self.may_end, self.has_ended = threading.Event(), threading.Event()

    def __del__(self):
        assert self.may_end.wait(DEADLINE)
        self.has_ended.set()


def feed_of(iterator):
    rows = tf.data.Dataset.range(1)
    feed = Feed(rows, ChiefBatches(BatchStructure(rows.element_spec)))
    feed._batches = iterator
    return feed


def share_of(iterator):
    structure = BatchStructure(tf.TensorSpec([]))
    share = ShardedIterator(lambda: iterator, structure, Totals(True))
    assert share.values is iterator
    share.open_values = None
    return share


@pytest.mark.parametrize("owner_of", [feed_of, share_of])
def test_whoever_has_an_iterator_does_not_wait_for_its_deletion(owner_of):
    iterator = Slow()
    may_end, has_ended = iterator.may_end, iterator.has_ended
    owner = owner_of(iterator)
    del iterator
    del owner
    gc.collect()
    assert not has_ended.is_set()
    may_end.set()
    assert has_ended.wait(DEADLINE)


@pytest.mark.parametrize("make", ["feed", "share"])
def test_one_that_was_never_read_has_nothing_to_delete(make):
    gc.collect()  # What other tests left is not deleted meanwhile.
    before = set(threading.enumerate())
    rows = tf.data.Dataset.range(1)
    if make == "feed":
        owner = Feed(rows, ChiefBatches(BatchStructure(rows.element_spec)))
    else:
        owner = ShardedIterator(list, BatchStructure(rows.element_spec), Totals(True))
    del owner
    # Threads of other tests may have ended meanwhile.
    begun = set(threading.enumerate()) - before
    assert [each.name for each in begun if each.name == "deletion"] == []


@pytest.mark.parametrize(
    ("asked_for", "is_tuned"), [(None, False), (False, False), (True, True)]
)
def test_workers_have_no_tuner_to_wait_for_unless_asked(
    asked_for, is_tuned, monkeypatch
):
    options = tf.data.Options()
    if asked_for is not None:
        options.autotune.enabled = asked_for
    endless = tf.data.Dataset.range(6).repeat().with_options(options)
    worker_input = WorkerInput.of(endless, coordinator=None, num_workers=2)
    monkeypatch.setattr(
        tf.distribute.coordinator,
        "experimental_get_current_worker_index",
        lambda: tf.constant(1, tf.int64),
    )
    share = worker_input._make()
    assert list(share.take(4).as_numpy_iterator()) == [1, 3, 5, 1]
    assert share.options().autotune.enabled is is_tuned


@pytest.mark.slow
def test_a_program_that_ends_says_nothing():
    code = """if True:
        from tfdist.keras.deletion import delete_in_background
        class Owner:
            def __del__(self):
                delete_in_background([self])
        owner = Owner()
        """
    done = jobs.run("-c", code)
    assert done.stdout == ""
    assert "Exception" not in done.stderr, done.stderr
