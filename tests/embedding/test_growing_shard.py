"""The rows of one ps, against a dictionary of Python."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import tfdist
from tfdist.embedding.growing.growing_shard import ABSENT, GrowingShard, KnownIds
from tfdist.embedding.growing.reserved import Reserved
from tfdist.embedding.growing.rules import RowRules

ORIGIN = [0, 0]
CAPACITY = 7  # So that a table is full soon.
SOME = st.lists(st.integers(-2, 11), min_size=0, max_size=5, unique=True)


def tensor(ids):
    return tf.constant(np.array(ids, np.int64))


def shard_of(admission=None, capacity=CAPACITY, follows=False, **options):
    """Returns a shard and its rows: of each, the id for which it was written last."""
    written = Reserved("", capacity)

    def write(rows, ids):
        return [written.set_at(rows, ids)]

    rules = RowRules(admission, follows=follows)
    return GrowingShard("", capacity, rules, write, ORIGIN, **options), written


class AgainstADictionary(RuleBasedStateMachine):
    """A table and a dictionary do the same, and are compared after each step."""

    @initialize(count=st.integers(1, 3), reuses=st.booleans())
    def begin(self, count, reuses):
        self.count, self.reuses = count, reuses
        self.shard, self.written = shard_of(
            tfdist.embedding.CountFilter(count), reuses=reuses, follows=True
        )
        self.ids, self.waiting, self.lookups = set(), {}, {}
        self.used = self.refused = self.created = self.removed = 0

    def room(self):
        taken = len(self.ids) if self.reuses else self.used
        return CAPACITY - 1 - taken

    def give_rows(self, ids):
        fits = ids[: self.room()]
        self.refused += len(ids) - len(fits)
        self.created += len(fits)
        self.used += len(fits)
        self.ids |= set(fits)
        self.lookups.update(dict.fromkeys(fits, 0))

    @rule(ids=SOME)
    def find_or_create(self, ids):
        rows = self.shard.find_or_create(tensor(ids)).numpy()
        missing = [each for each in ids if each not in self.ids]
        seen = {each: self.waiting.pop(each, 0) + 1 for each in missing}
        self.waiting.update({k: n for k, n in seen.items() if n < self.count})
        self.give_rows([each for each in missing if seen[each] >= self.count])
        for each in set(ids) & self.ids:
            self.lookups[each] += 1
        assert (rows != ABSENT).tolist() == [each in self.ids for each in ids]

    @rule(ids=SOME)
    def create(self, ids):
        self.shard.create(tensor(ids))
        self.give_rows([each for each in ids if each not in self.ids])

    @rule(ids=SOME)
    def remove(self, ids):
        there = set(ids) & self.ids
        assert int(self.shard.remove(tensor(ids))) == len(there)
        self.ids -= there
        self.removed += len(there)

    @rule()
    def restore(self):
        ids, rows = self.shard.in_use()
        waiting, batches = self.shard.waiting()
        seen, count = self.shard.known(rows)
        numbers = tf.range(1, len(ids) + 1, dtype=tf.int64)
        self.written.set_at(numbers, ids)
        self.shard.restore(numbers, KnownIds(ids, seen, count, waiting, batches))
        self.used = self.created = len(ids)
        self.refused = self.removed = 0

    @invariant()
    def they_are_equal(self):
        ids, rows = (found.numpy() for found in self.shard.in_use())
        assert sorted(ids) == sorted(self.ids)
        assert (np.diff(rows, prepend=ABSENT) > 0).all()
        np.testing.assert_array_equal(self.shard.find(ids), rows)
        np.testing.assert_array_equal(self.written.at(rows), ids)
        lookups = [self.lookups[each] for each in ids]
        np.testing.assert_array_equal(self.shard.known(rows)[1], lookups)
        assert self.shard.state() == {
            "rows": len(self.ids),
            "created": self.created,
            "refused": self.refused,
            "removed": self.removed,
            "max_rows": CAPACITY - 1,
        }
        waiting, batches = self.shard.waiting()
        assert dict(zip(waiting.numpy(), batches.numpy(), strict=True)) == self.waiting


def test_any_sequence_does_what_a_dictionary_does():
    run_state_machine_as_test(
        AgainstADictionary, settings=settings(max_examples=25, stateful_step_count=12)
    )


def in_threads(count, run):
    """Runs it in threads that begin together, and raises what one of them raises."""
    together, failed = threading.Barrier(count), []

    def begin(index):
        try:
            together.wait()
            run(index)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, args=[i]) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("is_traced", [False, True])
def test_of_threads_that_meet_an_id_together_one_creates_it(is_traced):
    shard, written = shard_of(capacity=4001)
    meet = shard.find_or_create
    if is_traced:
        meet = tf.function(meet, input_signature=[tf.TensorSpec([None], tf.int64)])
        meet(tensor([]))
    found = {}

    def run(index):
        ids = np.random.default_rng(index).permutation(2000)
        for some in np.split(ids, 40):
            rows = meet(tensor(some)).numpy()
            # Whoever finds a row finds it complete.
            np.testing.assert_array_equal(written.at(tf.constant(rows)), some)
            found.update({(index, i): row for i, row in zip(some, rows, strict=True)})

    in_threads(4, run)
    rows_of = [[found[index, i] for i in range(2000)] for index in range(4)]
    assert rows_of[0] == rows_of[1] == rows_of[2] == rows_of[3]
    assert len(set(rows_of[0])) == 2000
    state = shard.state()
    assert (state["created"], state["rows"], state["refused"]) == (2000, 2000, 0)


def test_threads_fill_a_table_to_its_last_row():
    shard, _ = shard_of(capacity=101)
    in_threads(
        4, lambda i: shard.find_or_create(tensor(range(1000 * i, 1000 * i + 50)))
    )
    assert shard.state()["rows"] == 100
    assert shard.state()["refused"] == 100


def test_an_id_is_in_the_index_only_once_its_row_is_written():
    seen = []

    def write(rows, ids):
        return [seen.append(shard.find(ids).numpy())]

    shard = GrowingShard("", 5, RowRules(), write, ORIGIN)
    shard.find_or_create(tensor([3, 4]))
    assert [each.tolist() for each in seen] == [[ABSENT, ABSENT]]


def test_a_row_that_was_left_half_created_is_no_row():
    def dies(rows, ids):
        if 13 in ids.numpy():
            raise RuntimeError
        return []

    shard = GrowingShard("", 5, RowRules(), dies, ORIGIN)
    with contextlib.suppress(RuntimeError):
        shard.find_or_create(tensor([13]))
    assert shard.find_or_create(tensor([3, 4])).numpy().tolist() == [2, 3]
    assert shard.state()["rows"] == 2
    assert shard.in_use()[1].numpy().tolist() == [2, 3]


def test_a_probability_admits_such_a_part():
    shard, _ = shard_of(tfdist.embedding.ProbabilityFilter(0.25), capacity=5000)
    shard.find_or_create(tensor(range(4000)))
    assert 850 < shard.state()["rows"] < 1150


def test_only_what_was_written_takes_memory():
    import psutil

    before = psutil.Process().memory_info().rss
    numbers = Reserved("", 2**28)  # 2 GiB
    for _ in range(3):
        numbers.set_at(tensor([1, 2**27, 2**28 - 1]), tensor([1, 2, 3]))
    numbers.add_at(tensor([1]), tensor([1]))
    assert numbers.at(tensor([1, 2**28 - 1])).numpy().tolist() == [2, 3]
    assert psutil.Process().memory_info().rss - before < 2**28
