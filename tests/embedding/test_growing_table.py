"""A table in several shards, in one process: lookups, gradients, slots, checkpoints."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdist
from tfdist import _tf
from tfdist.embedding.batch import Bag
from tfdist.embedding.growing.hashing import buckets_of
from tfdist.embedding.growing.initial_rows import rows_by
from tfdist.embedding.growing.origin import Origin
from tfdist.embedding.growing.pieces import Pieces, bounds_of
from tfdist.embedding.growing.rules import RowRules
from tfdist.embedding.growing.table import GrowingTable
from tfdist.placement.partition import Partition
from tfdist.variables.initial_value import Unwritten
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.reserved_rows import ReservedRowsError
from tfdist.variables.shard_layout import DIV, layout_of
from tfdist.variables.variable import ParameterServerVariable

from ..support.raising import raises

WIDTH = 3
ROWS = rows_by(keras.initializers.RandomUniform(), WIDTH, "float32")
IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 40)


def partitioned(num_shards, rows, name="embeddings"):
    shards = [
        ParameterServerVariable(tf.Variable(Unwritten()([rows + 1, WIDTH])), 1)
        for _ in range(num_shards)
    ]
    partition = Partition.of_sizes(0, [rows + 1] * num_shards, range(num_shards))
    return PartitionedVariable(shards, layout_of(partition, DIV), name, True, 1)


ORIGIN = Origin(0)


def table_of(
    num_shards=3, rows=50, origin=ORIGIN, admission=None, eviction=(), follows=True
):
    variable = partitioned(num_shards, rows)
    rules = RowRules(admission, eviction, follows)
    table = GrowingTable(variable, "t", ROWS, origin, rules)
    variable.growth = table
    return table


def slot_of(table, first):
    """Has a table a slot, of which each row begins with a number."""
    slot = partitioned(len(table.parts), table.parts[0].shape[0] - 1, "slot")
    initializer = keras.initializers.Constant(first)
    table.add_slot(slot, table.initializer_of_slot("slot", initializer))
    return slot


def rows_of(table, slot):
    """Returns a slot's rows by id, and sets each to a number that tells it apart."""
    found = {}
    for shard, part in zip(table.shards, slot.shards, strict=True):
        ids, rows = shard.in_use()
        values = part.sparse_read(rows).numpy()
        found.update(zip(ids.numpy().tolist(), values, strict=True))
    return found


def set_slot(table, slot):
    for shard, part in zip(table.shards, slot.shards, strict=True):
        ids, rows = shard.in_use()
        values = np.repeat(ids.numpy()[:, None] % 97, WIDTH, axis=1)
        part.scatter_update(tf.IndexedSlices(tf.constant(values, tf.float32), rows))


def content(table):
    return {
        each: row.tolist()
        for ids, rows in table.export(7)
        for each, row in zip(ids.tolist(), rows, strict=True)
    }


SHARDS = pytest.mark.parametrize("num_shards", [1, 3])


@SHARDS
@pytest.mark.parametrize("is_traced", [False, True])
def test_rows_and_gradients_are_those_of_a_whole_table(num_shards, is_traced):
    table = table_of(num_shards)
    some = tf.constant(np.random.default_rng(1).choice(IDS, (6, 4)))

    def step():
        with tf.GradientTape() as tape:
            for part in table.parts:
                tape.watch(part.handle)
            rows = table.look_up(some, creates=True)
            loss = tf.reduce_sum(rows * tf.constant([1.0, 2.0, 4.0]))
        return rows, tape.gradient(loss, [part.handle for part in table.parts])

    step = tf.function(step) if is_traced else step
    rows, gradients = step()
    np.testing.assert_array_equal(
        rows, tf.reshape(ROWS(tf.reshape(some, [-1]), 0), [6, 4, WIDTH])
    )
    ids, times = np.unique(some, return_counts=True)
    of_ids = {}
    for shard, gradient in zip(table.shards, gradients, strict=True):
        numbers = shard.find(tf.constant(ids)).numpy()
        by_row = dict(zip(numbers, ids, strict=True))
        for row, values in zip(gradient.indices.numpy(), gradient.values, strict=True):
            assert row != 0
            of_ids[by_row[row]] = values.numpy()
    expected = {i: n * np.array([1.0, 2, 4]) for i, n in zip(ids, times, strict=True)}
    np.testing.assert_equal(of_ids, expected)


@SHARDS
def test_ids_without_a_row_read_zeros_and_have_no_gradient(num_shards):
    table = table_of(num_shards, admission=tfdist.embedding.CountFilter(2))
    with tf.GradientTape() as tape:
        for part in table.parts:
            tape.watch(part.handle)
        rows = table.look_up(tf.constant(IDS), creates=True)
    gradients = tape.gradient(rows, [part.handle for part in table.parts])
    assert not rows.numpy().any()
    assert [len(each.indices) for each in gradients] == [0] * num_shards


@SHARDS
@pytest.mark.parametrize("size", [2, 30], ids=["by rows", "by sums"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_bags_are_what_their_rows_say(num_shards, size, is_weighted):
    table, random = table_of(num_shards), np.random.default_rng(2)
    ids = random.choice(IDS, 4 * size)
    bag = Bag(
        tf.constant(ids),
        tf.constant(np.repeat([0, 1, 3, 4], size)),
        tf.constant(random.normal(size=len(ids)), tf.float32) if is_weighted else None,
        tf.constant(5, tf.int64),
    )
    weights = np.ones(len(ids)) if bag.weights is None else bag.weights.numpy()
    with tf.GradientTape(persistent=True) as tape:
        for part in table.parts:
            tape.watch(part.handle)
        found = table.sum_bags(bag, "sum", creates=True)
        rows = table.look_up(bag.ids, creates=False) * weights[:, np.newaxis]
        expected = tf.math.unsorted_segment_sum(rows, bag.segments, 5)
        losses = [tf.reduce_sum(each**2) for each in (found, expected)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for part in table.parts:
        ours, theirs = (
            tf.convert_to_tensor(tape.gradient(loss, part.handle)) for loss in losses
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        assert not ours[0].numpy().any()


def test_bags_of_ids_without_rows_are_zeros_and_have_no_gradient():
    table = table_of(2, admission=tfdist.embedding.CountFilter(2))
    bag = Bag(tf.constant(IDS), tf.range(40, dtype=tf.int64) // 4, None, 10)
    with tf.GradientTape() as tape:
        for part in table.parts:
            tape.watch(part.handle)
        found = table.sum_bags(bag, "mean", creates=True)
    gradients = tape.gradient(found, [part.handle for part in table.parts])
    assert not found.numpy().any()
    assert [len(each.indices) for each in gradients] == [0, 0]


SOME = st.lists(st.sampled_from(IDS[:12].tolist()), min_size=1, max_size=5, unique=True)
KINDS = st.sampled_from(["meet", "upsert", "remove", "evict"])


@pytest.mark.not_in_gate
@given(st.integers(1, 3), st.lists(st.tuples(KINDS, SOME), max_size=12), st.data())
@settings(max_examples=20)
def test_any_sequence_does_what_a_dictionary_does(num_shards, sequence, data):
    table = table_of(num_shards, eviction=[tfdist.embedding.EvictSmall(0.5)])
    slot = slot_of(table, 0.25)
    rows, slots = {}, {}
    for kind, ids in sequence:
        some = np.array(ids)
        new = dict(zip(ids, ROWS(tf.constant(some), 0).numpy().tolist(), strict=True))
        if kind == "meet":
            table.look_up(tf.constant(some), creates=True)
            slots = {**dict.fromkeys(ids, 0.25), **slots}
            rows = {**new, **rows}
        elif kind == "upsert":
            value = data.draw(st.sampled_from([0.0, 1.0]))
            assert table.upsert(some, np.full((len(ids), WIDTH), value)) == 0
            slots = {**dict.fromkeys(ids, 0.25), **slots}
            rows.update(dict.fromkeys(ids, [value] * WIDTH))
        elif kind == "remove":
            assert table.remove(some) == len(rows.keys() & set(ids))
        else:
            small = [i for i, row in rows.items() if np.linalg.norm(row) < 0.5]
            assert table.evict(chunk=2) == len(small)
            ids = small
        if kind in ("remove", "evict"):
            rows = {i: row for i, row in rows.items() if i not in ids}
            slots = {i: row for i, row in slots.items() if i in rows}
        assert content(table) == rows
        np.testing.assert_equal(
            rows_of(table, slot), {i: np.full(WIDTH, n) for i, n in slots.items()}
        )
        set_slot(table, slot)
        slots = {i: i % 97 for i in rows}


def test_an_upsert_stays_at_the_next_eviction():
    rules = [tfdist.embedding.EvictRare(3), tfdist.embedding.EvictUnseen(hours=1)]
    table = table_of(eviction=rules)
    table.look_up(tf.constant(IDS), creates=True)
    for shard in table.shards:  # Two hours go by.
        _, rows = shard.in_use()
        shard._seen.add_at(
            rows, tf.fill(tf.shape(rows), tf.constant(-7200.0, "float64"))
        )
    table.upsert(IDS[:4], np.ones((4, WIDTH)))
    assert table.evict() == len(IDS) - 4
    assert set(content(table)) == set(IDS[:4].tolist())


def test_counts_decay_with_each_eviction():
    table = table_of(eviction=[tfdist.embedding.EvictRare(2, decay=0.5)])
    for _ in range(4):
        table.look_up(tf.constant(IDS[:1]), creates=True)
    assert [table.evict() for _ in range(3)] == [0, 0, 1]


def test_a_slot_that_comes_late_begins_in_all_rows():
    table = table_of()
    table.look_up(tf.constant(IDS[:5]), creates=True)
    slot = slot_of(table, 0.5)
    table.look_up(tf.constant(IDS), creates=True)
    assert all((row == 0.5).all() for row in rows_of(table, slot).values())
    assert len(rows_of(table, slot)) == len(IDS)


def test_a_slot_is_forgotten_with_its_optimizer():
    table = table_of()
    of_one, of_next = slot_of(table, 1.0), slot_of(table, 2.0)
    del of_one
    gc.collect()
    table.upsert(np.arange(3), np.ones((3, WIDTH)))
    assert {tuple(each) for each in rows_of(table, of_next).values()} == {
        (2.0,) * WIDTH
    }
    slot_of(table, 3.0)
    assert len(table.slots) == 2


def test_removed_ids_are_kept_for_those_alone_who_ask():
    table = table_of()
    table.upsert(np.arange(4), np.ones((4, WIDTH)))
    table.remove(np.array([0]))
    assert table.taken_removed().tolist() == []
    table.remove(np.array([1, 2]))
    assert table.taken_removed().tolist() == [1, 2]
    assert table.taken_removed().tolist() == []


def test_a_slot_whose_rows_differ_is_refused():
    with raises(ValueError, "one number", "Adagrad"):
        table_of().initializer_of_slot("m", keras.initializers.RandomUniform())


@pytest.mark.parametrize("use", ["read", "numpy", "assign"])
def test_the_rows_are_not_read_or_written_whole(use):
    variable = table_of().variable
    arguments = [np.zeros(variable.shape)] if use == "assign" else []
    call = getattr(variable, "read_value" if use == "read" else use)
    with raises(ReservedRowsError, "Lamb", "Adagrad"):
        call(*arguments)


def pieces(table, slot=None):
    """Saves as a checkpoint does: each tensor is asked for once."""
    saveables = []
    for name, variable in named(table, slot):
        for attribute, make in variable.factories().items():
            saveables += make(f"{name}/{attribute}")
    return {str(spec.name): spec.tensor for each in saveables for spec in each.specs}


def in_many_pieces(table, slot=None):
    num_shards = len(table.shards)
    table._export.pieces = Pieces(num_shards, 16)
    saved = pieces(table, slot)
    assert len(saved) == 2 * 2 * 16 * num_shards
    return saved


def known_of(table):
    return {
        each: known
        for shard in table.shards
        for each, *known in zip(
            shard.in_use()[0].numpy().tolist(),
            *(each.numpy().tolist() for each in shard.known(shard.in_use()[1])),
            strict=True,
        )
    }


def named(table, slot):
    return [("t", table.variable), *([] if slot is None else [("s", slot)])]


def restore(saved, table, slot=None):
    for name, variable in named(table, slot):
        of_name = (each.split("/") for each in saved)
        (attribute,) = {each[1] for each in of_name if each[0] == name}
        assert attribute in variable.factories()
        for each in variable.factories()[attribute](f"{name}/{attribute}"):
            tensors = [saved[str(spec.name)] for spec in each.specs]
            # As from a file: nothing is known of their shapes.
            signature = [tf.TensorSpec(None, tensor.dtype) for tensor in tensors]

            @tf.function(input_signature=[signature], autograph=False)
            def run(tensors, each=each):
                each.restore(tensors, None)

            run(tensors)


def earlier_pieces(table, slot):
    """What files of earlier versions had: for each bucket its rows, and what is known."""
    saved, origin = {}, table.origin.numbers()
    for shard, part, of_slot in zip(
        table.shards, table.parts, slot.shards, strict=True
    ):
        ids, rows = shard.in_use()
        seen, count = (each.numpy() for each in shard.known(rows))
        seen, count = seen.view(np.int64), np.int64(count.view(np.int32))
        waits = np.stack(shard.waiting(), 1)
        lines = [
            np.stack([np.full(len(ids), 1), ids, seen, count], 1),
            np.pad(waits, ((0, 0), (1, 1)), constant_values=((0, 0), (2, 0))),
        ]
        lines = np.concatenate(lines)
        of_lines, of_ids = (buckets_of(tf.constant(x)) for x in (lines[:, 1], ids))
        index = table.shards.index(shard)
        for bucket in range(*bounds_of(index, len(table.shards))):
            here = np.concatenate([[[0, *origin, 0]], lines[of_lines == bucket]])
            saved[f"t/VARIABLE_VALUE/known/{bucket:03d}"] = tf.constant(here)
            mine = rows[of_ids == bucket]
            for name, values in (("t", part), ("s", of_slot)):
                key = f"{name}/VARIABLE_VALUE/rows/{bucket:03d}"
                saved[key] = values.sparse_read(mine)
    return saved


def filled(num_shards, admission=None):
    table = table_of(
        num_shards, admission=admission, eviction=[tfdist.embedding.EvictRare(1)]
    )
    slot = slot_of(table, 0.5)
    for some in np.split(IDS, 4):
        table.look_up(tf.constant(some), creates=True)
    set_slot(table, slot)
    return table, slot


OTHER_PIECES = [
    pytest.param(each, marks=pytest.mark.not_in_gate)
    for each in (in_many_pieces, earlier_pieces)
]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 5), (3, 3)])
@pytest.mark.parametrize("save", [pieces, *OTHER_PIECES])
def test_a_table_and_its_slots_are_restored_into_other_shards(before, after, save):
    table, slot = filled(before)
    table.remove(IDS[::3])
    saved = save(table, slot)
    other, other_slot = table_of(after, eviction=[tfdist.embedding.EvictRare(1)]), None
    other_slot = slot_of(other, 0.0)
    other.look_up(tf.constant(IDS[5:] + 1), creates=True)  # These go.
    restore(saved, other, other_slot)
    assert content(other) == content(table)
    np.testing.assert_equal(rows_of(other, other_slot), rows_of(table, slot))
    np.testing.assert_equal(known_of(other), known_of(table))
    other.look_up(tf.constant(IDS), creates=True)
    assert sum(each.state()["rows"] for each in other.shards) == len(IDS)
    np.testing.assert_array_equal(
        [rows_of(other, other_slot)[each] for each in IDS[::3].tolist()], 0.0
    )


@pytest.mark.parametrize("save", [pieces, in_many_pieces, earlier_pieces])
def test_what_waits_is_restored(save):
    table = table_of(2, admission=tfdist.embedding.CountFilter(3))
    for _ in range(2):
        table.look_up(tf.constant(IDS), creates=True)
    saved = save(table, slot_of(table, 0.0))
    other = table_of(3, admission=tfdist.embedding.CountFilter(3))
    restore(saved, other)
    other.look_up(tf.constant(IDS), creates=True)
    assert set(content(other)) == set(IDS.tolist())


class Saved(tf.Module):
    """What a checkpoint takes for a variable."""

    def __init__(self, factories):
        super().__init__()
        self._factories = factories

    def _gather_saveables_for_checkpoint(self):
        return self._factories


def earlier(saved, of):
    """Saves the tensors of a variable as earlier versions did."""

    def make(name):
        specs = [
            _tf.SaveSpec(value, "", name + each.removeprefix(f"{of}/VARIABLE_VALUE"))
            for each, value in saved.items()
            if each.startswith(of)
        ]
        return [_tf.SaveableObject(None, specs, name)]

    return Saved({"VARIABLE_VALUE": make})


def checkpoint_of(table, slot):
    parts = {name: Saved(each.factories()) for name, each in named(table, slot)}
    return tf.train.Checkpoint(**parts)


@pytest.mark.parametrize("is_earlier", [False, True])
def test_a_file_is_restored_into_other_shards(is_earlier, tmp_path):
    table, slot = filled(2)
    checkpoint = checkpoint_of(table, slot)
    if is_earlier:
        saved = earlier_pieces(table, slot)
        parts = {name: earlier(saved, name) for name in "ts"}
        checkpoint = tf.train.Checkpoint(**parts)
    path = checkpoint.write(str(tmp_path / "c"))
    for num_shards in (2, 3):
        other = table_of(num_shards)
        other_slot = slot_of(other, 0.0)
        checkpoint_of(other, other_slot).read(path).assert_consumed()
        assert content(other) == content(table)
        assert known_of(other) == known_of(table)
        np.testing.assert_equal(rows_of(other, other_slot), rows_of(table, slot))
    with raises(tf.errors.NotFoundError, "t/.ATTRIBUTES/VARIABLE_VALUE"):
        tf.train.Checkpoint(t=tf.Variable([0.0])).read(path)


def test_a_save_has_few_tensors_and_traces_once_what_they_are(tmp_path):
    table, slot = filled(2)
    checkpoint = checkpoint_of(table, slot)
    for i in range(3):
        path = checkpoint.write(str(tmp_path / str(i)))
        assert len(tf.train.list_variables(path)) == 2 * 2 * 2 + 1
        table.look_up(tf.constant(IDS + i), creates=True)
    assert table._export._compute.experimental_get_tracing_count() == 1


def test_what_is_known_of_no_row_begins_where_it_is_followed():
    table = table_of(2, follows=False)
    table.look_up(tf.constant(IDS), creates=True)
    before, other = tf.timestamp(), table_of(3)
    restore(pieces(table), other)
    known = known_of(other)
    assert known.keys() == set(IDS.tolist())
    assert all(seen >= before and count == 0 for seen, count in known.values())
    again = table_of(1, follows=False)
    restore(pieces(other), again)
    assert content(again) == content(table)


def test_rows_that_a_late_step_creates_during_a_save_mix_nothing_up():
    table, slot = filled(2)
    rows, slots = content(table), rows_of(table, slot)

    @tf.function(autograph=False)
    def save():
        saved = pieces(table)
        table.look_up(tf.constant(IDS + 1), creates=True)
        late = pieces(table, slot)
        return saved | {name: late[name] for name in late if name[0] == "s"}

    other = table_of(2)
    other_slot = slot_of(other, 0.0)
    restore(save(), other, other_slot)
    assert len(content(table)) == 2 * len(IDS)
    assert content(other) == rows
    np.testing.assert_equal(rows_of(other, other_slot), slots)


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (Origin(5), r"another seed .* seed=5.*the seed of the checkpoint, or without"),
        (Origin(0, has_strings=True), r"other key_dtype.* key_dtype=.*string"),
    ],
)
def test_a_table_of_another_origin_is_not_restored(origin, words):
    saved = pieces(filled(2)[0])
    other = table_of(3, origin=origin)
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        restore(saved, other)
    assert content(other) == {}


def test_a_table_whose_seed_nobody_chose_takes_that_of_the_checkpoint():
    table = filled(2)[0]
    other = table_of(3, origin=Origin(5, is_drawn=True))
    meet = tf.function(lambda ids: other.look_up(ids, creates=True))
    meet(tf.constant(IDS))  # With rows of its own seed, which go.
    restore(pieces(table), other)
    meet(tf.constant(IDS + 1))
    table.look_up(tf.constant(IDS + 1), creates=True)
    assert content(other) == content(table)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rows": 5}, r"more rows are restored than the 5 .*larger max_rows"),
        ({"width": 2}, r"output_dim=3\. Build the layer with the width"),
    ],
)
def test_what_does_not_fit_is_not_restored(changed, words):
    saved = pieces(filled(1)[0])
    if width := changed.get("width"):
        saved = {k: v[:, :width] if "rows" in k else v for k, v in saved.items()}
    other = table_of(1, rows=changed.get("rows", 50))
    other.look_up(tf.constant(IDS[:2]), creates=True)
    before = content(other)
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        restore(saved, other)
    assert content(other) == before
